"""Conditions and phase of states made by hand: each row changes a model that serves in one respect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from encoder_operator.planner.actions import Apply
from encoder_operator.state.observed import Deployment
from encoder_operator.status.pod_diagnosis import Problem
from encoder_operator.status.reasons import Reason
from encoder_operator.status.status import not_accepted_status, waiting_for_deletion_status
from encoder_operator.status.tests.states import (
    ARTIFACT,
    CRASH,
    EMPTY,
    FIRST,
    MODEL,
    MOVED,
    NOTHING,
    READY,
    ROUTE,
    SECOND,
    SERVING,
    UNPREPARED,
    pod,
    reported,
    status,
    verdict,
)
from encoder_operator.validation.errors import NotAccepted
from encoder_plugins import catalog


def test_a_model_that_serves() -> None:
    found = status()
    assert {entry["type"]: (entry["status"], entry["reason"]) for entry in found["conditions"]} == {
        "Accepted": ("True", "Accepted"),
        "ArtifactReady": ("True", "Prepared"),
        "Verified": ("True", "ParityPassed"),
        "Available": ("True", "Serving"),
        "UpToDate": ("True", "Current"),
        "Progressing": ("False", "Idle"),
        "Degraded": ("False", "AsExpected"),
        "UpdateAvailable": ("False", "Current"),
        "Ready": ("True", "Ready"),
    }
    expected = {
        "phase": "Serving",
        "ready": "1/1",
        "replicas": 1,
        "readyReplicas": 1,
        "desiredReplicas": 1,
        "activeRevision": "r1",
        "artifact": {"key": "k", "resolvedRevision": "1" * 40, "digest": "sha256:d", "bytes": 7},
        "engine": {"image": "engine:1", "imageID": "sha256:1", "accelerator": "nvidia", "dtype": "bfloat16"},
    }
    assert {name: found[name] for name in expected} == expected
    assert not found.keys() & {"candidateRevision", "candidateParity", "parityJob", "prepJob"}


def test_jobs_are_shown_from_their_creation_on() -> None:
    created = [Apply({"kind": "Job", "metadata": {"name": name}}, None) for name in ("minilm-prep", "minilm-parity")]
    found = status(artifact_plan=replace(READY, actions=(created[0],)), verification={"actions": (created[1],)})
    assert (found["prepJob"], found["parityJob"]) == ("minilm-prep", "minilm-parity")


def test_the_numbers_of_a_verdict_are_shown_and_nothing_else_of_it() -> None:
    metrics = [
        {"name": "cosine", "value": "0.9999", "threshold": "0.999", "worst": "long-1"},
        {"name": "seconds", "value": "3", "threshold": None},
        {"name": "agreement", "value": "1"},
    ]
    passed = verdict()
    found = status(observed={"verdicts": (replace(passed, data={**passed.data, "metrics": metrics, "worst": [1]}),)})
    assert found["parity"] == {
        "result": "Passed",
        "revision": "r1",
        "accelerator": passed.product,
        "metrics": [
            {"name": "cosine", "value": "0.9999", "threshold": "0.999"},
            {"name": "seconds", "value": "3"},
            {"name": "agreement", "value": "1"},
        ],
        "cases": 3,
        "ranAt": "2026-01-01T00:00:00Z",
    }


def test_the_artifact_is_shown_with_parameters_and_label_sets_that_it_was_prepared_with() -> None:
    artifact = replace(ARTIFACT, parameters={"wordsSplitter": "whitespace"}, label_sets={"b": "1" * 64, "a": "2" * 64})
    found = status(artifact_plan=replace(READY, artifact=artifact))
    assert found["artifact"]["parameters"] == {"wordsSplitter": "whitespace"}
    assert found["artifact"]["labelSets"] == [{"name": "a", "sha256": "2" * 64}, {"name": "b", "sha256": "1" * 64}]
    assert not status()["artifact"].keys() & {"parameters", "labelSets"}


def test_the_note_on_licenses_is_shown_from_the_first_status_on() -> None:
    assert "license" not in status()
    model = replace(MODEL, plugin=catalog.get("embeddinggemma"))
    assert status(model=model)["license"] == model.plugin.licence_note
    assert status(model=model, artifact_plan=UNPREPARED, target=None)["license"] == model.plugin.licence_note
    assert waiting_for_deletion_status(model, SERVING)["license"] == model.plugin.licence_note
    # an edit that is not accepted does not change what the pods serve
    live = {"metadata": {}, "status": {"license": "before"}}
    assert not_accepted_status(live, NotAccepted(Reason.INVALID_SPEC, "wrong"), SERVING)["license"] == "before"


REFUSED = Deployment(revision="r1", replicas=1, replica_failure="exceeded quota", live={})
FAILED_FIRST = (verdict(passed=False),)
SPARED = {"rejection": Problem(Reason.PROGRESS_DEADLINE_EXCEEDED, "too slow")}
DISPARITY = {"rejection": Problem(Reason.PARITY_FAILED, "differs"), "active": FIRST, "deployed": FIRST}


@pytest.mark.parametrize(
    ("changes", "phase", "expected"),
    [
        pytest.param(
            {"observed": {"pods": (pod(**CRASH),)}},
            "Failed",
            {"Available": ("False", "CrashLoop"), "Degraded": ("True", "CrashLoop"), "Ready": ("False", "CrashLoop")},
            id="a pod crashes",
        ),
        pytest.param(
            {"observed": {"pods": (pod(), pod(SECOND, name="other", **CRASH))}},
            "Serving",
            {"Degraded": ("False", "AsExpected"), "Ready": ("True", "Ready")},
            id="a pod of a revision that nobody wants crashes",
        ),
        pytest.param(
            {"observed": {"pods": (pod(deleting=True, **CRASH), pod(name="other"))}},
            "Serving",
            {"Degraded": ("False", "AsExpected")},
            id="a pod that is being deleted crashes",
        ),
        pytest.param(
            {"observed": {"pods": (), "deployment": REFUSED}},
            "Failed",
            {"Available": ("False", "PodsRefused"), "Degraded": ("True", "PodsRefused")},
            id="pods are refused",
        ),
        pytest.param(
            {"observed": {"pods": (pod(**CRASH),), "deployment": REFUSED}},
            "Failed",
            {"Available": ("False", "CrashLoop")},
            id="a pod crashes and another is refused",
        ),
        pytest.param(
            {"observed": {"verdicts": FAILED_FIRST}},
            "Degraded",
            {
                "Verified": ("False", "ParityFailed"),
                "Degraded": ("True", "ParityFailed"),
                "Ready": ("False", "ParityFailed"),
            },
            id="a verdict that failed",
        ),
        pytest.param(
            {"observed": {"verdicts": FAILED_FIRST}, "spec": {"spec.parity": {"mode": "Warn"}}},
            "Degraded",
            {"Verified": ("False", "ParityFailed"), "Ready": ("True", "Ready")},
            id="a failure under Warn",
        ),
        pytest.param(
            {"observed": {"verdicts": ()}, "spec": {"spec.parity": {"mode": "Disabled"}}},
            "Serving",
            {"Verified": ("Unknown", "Disabled"), "Ready": ("True", "Ready"), "Degraded": ("False", "AsExpected")},
            id="without parity checks",
        ),
        pytest.param(
            {"observed": {"verdicts": (verdict(thresholds="older"),)}, "verification": {"running": "Job x compares"}},
            "Serving",
            {"Verified": ("Unknown", "ParityRunning"), "Progressing": ("True", "ParityRunning")},
            id="compared again under other thresholds",
        ),
        pytest.param(
            {"observed": {"verdicts": ()}, "verification": {"inconclusive": "no answer", "running": "Job x"}},
            "Serving",
            {"Verified": ("Unknown", "Inconclusive"), "Progressing": ("True", "Inconclusive")},
            id="a check without a result",
        ),
        pytest.param(
            {"rollout": SPARED},
            "Degraded",
            {"UpToDate": ("False", "ProgressDeadlineExceeded"), "Degraded": ("True", "ProgressDeadlineExceeded")},
            id="a revision that was given up",
        ),
        pytest.param(
            {
                "rollout": DISPARITY,
                "target": SECOND,
                "observed": {"verdicts": (verdict(), verdict(SECOND, passed=False))},
            },
            "Degraded",
            {
                "UpToDate": ("False", "ParityFailed"),
                "Verified": ("True", "ParityPassed"),
                "Available": ("True", "Serving"),
            },
            id="an update that differs",
        ),
        pytest.param(
            {"artifact_plan": replace(READY, reason=Reason.CHECKSUM_MISMATCH, message="m", artifact=None, failed=True)},
            "Degraded",
            {
                "ArtifactReady": ("False", "ChecksumMismatch"),
                "Degraded": ("True", "ChecksumMismatch"),
                "Ready": ("True", "Ready"),
            },
            id="a preparation that failed while another revision serves",
        ),
        pytest.param(
            {"rollout": {"foreign_fields": ("spec.paused",)}, "observed": {"pods": (pod(**CRASH),)}},
            "Failed",
            {"Degraded": ("True", "ForeignField"), "Available": ("False", "CrashLoop")},
            id="a foreign field and what follows from it",
        ),
        pytest.param(
            {"spec": {"spec.suspend": True}, "rollout": {"replicas": 0}, "observed": {"pods": ()}},
            "Suspended",
            {
                "Ready": ("False", "Suspended"),
                "Available": ("False", "Suspended"),
                "Progressing": ("False", "Suspended"),
            },
            id="suspended",
        ),
        pytest.param(
            {"spec": {"spec.suspend": True}, "rollout": {"replicas": 0}},
            "Suspended",
            {"Ready": ("False", "Suspended"), "Available": ("True", "Serving")},
            id="suspended while its pod still answers",
        ),
        pytest.param(
            {"rollout": {**SPARED, "active": None}, "observed": {"pods": (pod(**CRASH),)}},
            "Failed",
            {"Available": ("False", "ProgressDeadlineExceeded"), "Progressing": ("False", "CrashLoop")},
            id="a first revision that was given up",
        ),
        pytest.param(
            {"rollout": SPARED, "observed": {"pods": (pod(**CRASH),)}},
            "Failed",
            {"Available": ("False", "CrashLoop"), "UpToDate": ("False", "ProgressDeadlineExceeded")},
            id="an update that was given up while the revision that serves crashes",
        ),
        pytest.param(
            {"observed": {"pods": (pod(ready=False),)}, "verification": {"other": MOVED}},
            "Pending",
            {"Available": ("False", "NoReadyPods"), "Progressing": ("True", "ParityRunning")},
            id="pods that serve are verified on another platform",
        ),
        pytest.param(
            {"verification": {"other": MOVED}},
            "Serving",
            {"Available": ("True", "Serving"), "Progressing": ("False", "Idle")},
            id="one pod is verified on another platform while another one serves",
        ),
        pytest.param(
            {"observed": {"pods": (pod(ready=False, phase="Failed", reason="Evicted"),)}},
            "Pending",
            {
                "Available": ("False", "Evicted"),
                "Progressing": ("False", "Evicted"),
                "Degraded": ("False", "AsExpected"),
            },
            id="the only pod was evicted",
        ),
        pytest.param(
            {"observed": {"pods": (pod(name="old", ready=False, phase="Failed", reason="Evicted"), pod())}},
            "Serving",
            {"Available": ("True", "Serving"), "Progressing": ("False", "Idle")},
            id="an evicted pod was replaced",
        ),
        pytest.param(
            {"rollout": SPARED, "observed": {"verdicts": ()}},
            "Degraded",
            {"Verified": ("Unknown", "ParityPending"), "Progressing": ("False", "ProgressDeadlineExceeded")},
            id="a revision that was given up before it was compared",
        ),
        pytest.param(
            {"target": SECOND, "observed": {"verdicts": ()}},
            "RollingOut",
            {"Verified": ("Unknown", "NotVerified"), "UpToDate": ("False", "RolloutInProgress")},
            id="an update that is not verified yet",
        ),
        pytest.param(
            {"target": SECOND, "verification": {"inconclusive": "no answer"}},
            "RollingOut",
            {"UpToDate": ("False", "Inconclusive"), "Progressing": ("True", "Inconclusive")},
            id="an update whose check had no result",
        ),
        pytest.param(
            {"target": None, "artifact_plan": UNPREPARED, "rollout": NOTHING, "observed": EMPTY},
            "Preparing",
            {
                "Verified": ("Unknown", "NotVerified"),
                "Progressing": ("True", "Preparing"),
                "Ready": ("False", "Preparing"),
            },
            id="the first preparation",
        ),
        pytest.param(
            {
                "target": None,
                "artifact_plan": replace(UNPREPARED, reason=Reason.QUEUED),
                "rollout": NOTHING,
                "observed": EMPTY,
            },
            "Pending",
            {"Progressing": ("False", "Queued"), "UpToDate": ("False", "Queued")},
            id="a preparation that waits for a slot",
        ),
        pytest.param(
            {"observed": {"pods": (), "verdicts": ()}, "rollout": {"active": None}},
            "Verifying",
            {
                "Available": ("False", "NoReadyPods"),
                "Progressing": ("True", "Starting"),
                "Verified": ("Unknown", "ParityPending"),
            },
            id="the first pod starts",
        ),
        pytest.param(
            {"observed": {"pods": (pod(),)}, "rollout": {"replicas": 2}, "spec": {"spec.serving.replicas": 2}},
            "Serving",
            {"Progressing": ("True", "Starting"), "Ready": ("True", "Ready")},
            id="a second pod starts",
        ),
        pytest.param(
            {"spec": {"spec.network": {"httpRoute": ROUTE}}},
            "Degraded",
            {"Degraded": ("True", "GatewayApiMissing"), "Ready": ("True", "Ready")},
            id="a route without the Gateway API",
        ),
        pytest.param(
            {"spec": {"spec.network": {"httpRoute": ROUTE}}, "observed": {"gateway_api": True}},
            "Serving",
            {"Degraded": ("False", "AsExpected")},
            id="a route with the Gateway API",
        ),
        pytest.param(
            {"spec": {"spec.serving.replicas": 0}, "rollout": {"replicas": 0}, "observed": {"pods": ()}},
            "Suspended",
            {"Ready": ("False", "ScaledToZero"), "Degraded": ("False", "AsExpected")},
            id="scaled to zero",
        ),
        pytest.param(
            {"held_back": ("Deployment minilm",), "spec": {"spec.paused": True}},
            "Serving",
            {"UpToDate": ("False", "Paused"), "Progressing": ("False", "Paused")},
            id="paused",
        ),
        pytest.param(
            {"observed": {"pods": (pod(), pod(SECOND, name="old"))}},
            "RollingOut",
            {"UpToDate": ("False", "RolloutInProgress"), "Progressing": ("False", "Idle")},
            id="a pod of the previous revision serves still",
        ),
        pytest.param(
            {"available_update": "image engine:2"},
            "Serving",
            {"UpdateAvailable": ("True", "NewDefaults"), "Ready": ("True", "Ready")},
            id="newer defaults",
        ),
    ],
)
def test_a_state_is_reported(changes: dict[str, Any], phase: str, expected: dict[str, tuple[str, str]]) -> None:
    found = status(**changes)
    assert (found["phase"], reported(found, *expected)) == (phase, expected)


def test_a_candidate_is_shown_beside_the_revision_that_serves() -> None:
    both = (verdict(), verdict(SECOND, passed=False))
    found = status(target=SECOND, observed={"verdicts": both})
    assert (found["activeRevision"], found["candidateRevision"]) == ("r1", "r2")
    assert (found["parity"]["result"], found["candidateParity"]["result"]) == ("Passed", "Failed")
