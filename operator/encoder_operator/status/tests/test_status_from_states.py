"""Conditions and phase of states made by hand: each row changes a model that serves in one respect."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from encoder_operator.planner.artifact import ArtifactPlan
from encoder_operator.planner.rollout import RolloutPlan
from encoder_operator.planner.verification import VerificationPlan
from encoder_operator.revisions.hashing import Json
from encoder_operator.revisions.revision import Artifact
from encoder_operator.state.observed import (
    Deployment,
    GateCondition,
    ObservedState,
    Platform,
    Pod,
    Revision,
    Verdict,
    parse_pod,
)
from encoder_operator.status.pod_diagnosis import Problem
from encoder_operator.status.reasons import Reason
from encoder_operator.status.status import StatusInputs, build_status
from encoder_operator.tests.harness import parsed_model

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE = Platform("NVIDIA-L4", "sha256:1")
ARTIFACT = Artifact(key="k", digest="sha256:d", reference="sha256:f", revision="1" * 40, bytes=7)
MODEL = parsed_model()
CRASH: dict[str, Any] = {"waiting_reason": "CrashLoopBackOff", "waiting_message": "back-off", "ready": False}


def revision(number: int) -> Revision:
    pinned = {"image": "engine:1", "accelerator": "nvidia", "dtype": "bfloat16"}
    return Revision(
        hash=f"r{number}", inputs_hash="", number=number, pvc_uid="", template={}, pinned=pinned, created=NOW
    )


FIRST, SECOND = revision(1), revision(2)


def pod(of: Revision = FIRST, **changes: Any) -> Pod:
    body = {"metadata": {"name": "pod", "uid": "u", "labels": {"encoders.dev/revision": of.hash}}}
    gate = GateCondition(open=True, reason="ParityPassed", message="", platform=HERE)
    found = parse_pod({**body, "status": {"phase": "Running"}})
    return replace(
        found,
        **{"product": HERE.product, "image_id": HERE.image, "ready": True, "created": NOW, "gate": gate, **changes},
    )


def verdict(of: Revision = FIRST, *, passed: bool = True, **changes: Any) -> Verdict:
    result = "Passed" if passed else "Failed"
    fields: dict[str, Any] = {
        "name": f"{of.hash}-{result}",
        "revision": of.hash,
        "product": HERE.product,
        "image": HERE.image,
        "thresholds": MODEL.thresholds,
        "retry": "",
        "passed": passed,
        "data": {"result": result, "metrics": [], "cases": 3, "ranAt": "2026-01-01T00:00:00Z"},
        "created": NOW,
    }
    return Verdict(**{**fields, **changes})


SERVING = ObservedState(
    now=NOW,
    pods=(pod(),),
    verdicts=(verdict(),),
    deployment=Deployment(revision="r1", replicas=1, replica_failure="", live={}),
)
ROLLED_OUT = RolloutPlan(
    deployed=FIRST, replicas=1, active=FIRST, target_may_serve=True, rejection=None, actions=(), foreign_fields=()
)
READY = ArtifactPlan(reason=Reason.PREPARED, message="prepared", key="k", artifact=ARTIFACT)


def status(
    *,
    spec: dict[str, Any] | None = None,
    observed: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    verification: dict[str, Any] | None = None,
    **inputs: Any,
) -> Json:
    """Return the status of a model that serves, with changes."""
    seen = replace(SERVING, **(observed or {}))
    given = StatusInputs(
        model=parsed_model(spec),
        observed=seen,
        artifact_plan=READY,
        target=FIRST,
        verification=VerificationPlan(observed=seen, **(verification or {})),
        rollout=replace(ROLLED_OUT, **(rollout or {})),
        available_update=None,
    )
    return build_status(replace(given, **inputs))


def reported(found: Json, *names: str) -> dict[str, tuple[str, str]]:
    return {
        entry["type"]: (entry["status"], entry["reason"]) for entry in found["conditions"] if entry["type"] in names
    }


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
            {"ArtifactReady": ("False", "ChecksumMismatch"), "Degraded": ("True", "ChecksumMismatch")},
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
            {"spec": {"spec.serving.replicas": 0}, "rollout": {"replicas": 0}, "observed": {"pods": ()}},
            "Suspended",
            {"Ready": ("False", "ScaledToZero"), "Degraded": ("False", "AsExpected")},
            id="scaled to zero",
        ),
        pytest.param(
            {"held_back": ("Deployment minilm",), "spec": {"spec.paused": True}},
            "RollingOut",
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
