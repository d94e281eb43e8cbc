"""Messages and numbers of the status, from states made by hand, and the statuses of models that are not reconciled."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from encoder_operator.api.v1alpha1.status import Status
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.observed import (
    ObservedState,
    Pod,
)
from encoder_operator.status.condition_values import MESSAGE_LIMIT
from encoder_operator.status.messages import parity_message
from encoder_operator.status.reasons import Reason
from encoder_operator.status.status import (
    not_accepted_status,
    waiting_for_deletion_status,
)
from encoder_operator.status.tests.states import (
    EMPTY,
    MODEL,
    MOVED,
    NOTHING,
    NOW,
    READY,
    SECOND,
    UNPREPARED,
    messages,
    pod,
    reported,
    status,
)
from encoder_operator.tests.harness import SETTINGS, parsed_model
from encoder_operator.validation.errors import NotAccepted


@pytest.mark.parametrize(
    ("value", "threshold", "shown"),
    [
        ("0.999999701", "0.99999", "0.9999997"),
        ("1", "0.99999", "1"),
        ("0.999989", "0.99999", "0.999989"),
        ("0.99999", "0.99999", "0.99999"),
        ("2.99885865e-07", "1e-05", "3e-07"),
        ("1.00000042e-05", "1e-05", "1.00000042e-05"),
        ("1.40485682", "1e-05", "1.4"),
        ("0.1706", None, "0.171"),
        ("nan", "1e-05", "nan"),
        ("many", "1e-05", "many"),
    ],
)
def test_a_measured_value_is_as_long_as_its_distance_from_the_threshold_needs(
    value: str, threshold: str | None, shown: str
) -> None:
    metric = {"name": "m", "value": value} | ({"threshold": threshold} if threshold else {})
    text = parity_message("r", "cpu", {"result": "Passed", "metrics": [metric], "cases": 1})
    assert re.findall(r": m (\S+)", text) == [shown]


def test_counts_of_pods_are_spelled_as_one_reads_them() -> None:
    one, two = messages(status()), {"spec": {"spec.serving.replicas": 2}, "rollout": {"replicas": 2}}
    assert (one["Ready"], one["Available"]) == (
        "1 pod of revision r1 serves traffic",
        "1 of 1 pod of revision r1 is ready",
    )
    both = messages(status(observed={"pods": (pod(), pod(name="other"))}, **two))
    assert (both["Ready"], both["Available"]) == (
        "2 pods of revision r1 serve traffic",
        "2 of 2 pods of revision r1 are ready",
    )
    assert messages(status(**two))["Progressing"] == "1 of 2 pods are ready"
    old = (pod(), pod(SECOND, name="a"))
    message = messages(status(observed={"pods": old}))["UpToDate"]
    assert message == "1 pod of the previous revision still serves traffic"
    message = messages(status(observed={"pods": (*old, pod(SECOND, name="b"), pod(SECOND, deleting=True))}))["UpToDate"]
    assert message == "2 pods of the previous revision still serve traffic"


def test_pods_that_ended_or_end_are_not_counted() -> None:
    pods = (pod(), pod(ready=False), pod(phase="Failed", ready=False), pod(deleting=True))
    found = status(observed={"pods": pods})
    assert (found["ready"], found["replicas"], found["readyReplicas"]) == ("1/1", 2, 1)
    assert status(spec={"spec.suspend": True})["ready"] == "1/0"


@pytest.mark.parametrize(
    ("changes", "condition", "message"),
    [
        ({"verification": {"running": "Job x"}, "target": SECOND}, "UpToDate", "Job x"),
        ({"target": SECOND}, "UpToDate", "Revision r2 is not verified yet"),
        (
            {"observed": {"pods": ()}, "verification": {"other": MOVED}},
            "Available",
            "No pod of a verified revision is ready: compared on another platform",
        ),
        (
            {"observed": {"verdicts": ()}, "verification": {"inconclusive": "no answer"}},
            "Verified",
            "no answer; the parity check will be retried",
        ),
        ({"available_update": "engine:2"}, "UpdateAvailable", "Newer operator defaults are available: engine:2"),
        (
            {"available_update": "engine:2", "spec": {"spec.rollout.updatePolicy": "Automatic"}},
            "UpdateAvailable",
            "Newer operator defaults are available: engine:2, to be rolled out in the update window",
        ),
        (
            {"rollout": {"foreign_fields": ("a", "b")}},
            "Degraded",
            "Deployment minilm has fields that another client has set: a, b",
        ),
    ],
)
def test_a_message_has_the_details(changes: dict[str, Any], condition: str, message: str) -> None:
    assert messages(status(**changes))[condition] == message


def test_a_message_of_any_length_fits_the_schema() -> None:
    plan = replace(READY, reason=Reason.CHECKSUM_MISMATCH, message="x" * 40_000, artifact=None, failed=True)
    assert max(map(len, messages(status(artifact_plan=plan)).values())) == MESSAGE_LIMIT


def test_the_endpoint_of_a_paused_model_is_that_of_the_service_that_exists() -> None:
    paused = {"spec.paused": True}
    assert status()["endpoint"] == "http://minilm.demo.svc/pooling"
    assert "endpoint" not in status(spec=paused)
    found = status(spec=paused, observed={"service": {"spec": {"ports": [{"port": 9000}]}}})
    assert found["endpoint"] == "http://minilm.demo.svc:9000/pooling"


def progress(previous: Json | None, now: Json | None) -> Json:
    """Return the artifact in the status while it is prepared, after a status that had `previous` as its artifact."""
    model = replace(parsed_model(), status={"artifact": previous} if previous else {})
    plan = replace(UNPREPARED, progress=now)
    found = status(model=model, artifact_plan=plan, target=None, rollout=NOTHING, observed=EMPTY)
    return dict(found.get("artifact", {}))


def test_progress_is_written_every_ten_seconds() -> None:
    def at(seconds: int) -> str:
        return f"2026-01-01T00:00:{seconds:02}Z"

    first = {"phase": "download", "bytes": 1, "total": 9, "bytesPerSecond": None, "pid": 7, "at": at(0)}
    shown = {"phase": "download", "bytes": 1, "total": 9, "at": at(0)}
    assert progress(None, None) == {}
    assert progress(None, first) == {"key": "k", "progress": shown}
    before = {"key": "k", "progress": shown}
    assert progress(before, {**first, "at": at(9), "bytes": 2}) == before
    later = {"key": "k", "progress": {**shown, "at": at(10), "bytes": 2}}
    assert progress(before, {**first, "at": at(10), "bytes": 2}) == later
    # of another artifact, or of a pod that started again
    assert progress({**before, "key": "other"}, first | {"bytes": 2})["progress"]["bytes"] == 2
    assert progress({"key": "k", "progress": {**shown, "at": at(9)}}, first)["progress"]["at"] == at(0)


def test_code_of_the_checkpoint_that_is_trusted_is_named() -> None:
    trusting = SETTINGS.model_copy(update={"allow_trust_remote_code": True})
    for field in ("serving", "prepare"):
        model = parsed_model({f"spec.{field}.trustRemoteCode": True}, trusting)
        assert reported(status(model=model), "Accepted") == {"Accepted": ("True", "RemoteCodeTrusted")}


def rejected(old: Json, *pods: Pod, generation: int = 2) -> Json:
    live = {"metadata": {"name": "minilm", "namespace": "demo", "generation": generation}, "status": old}
    error = NotAccepted(Reason.ARGUMENT_DENIED, "not this one")
    found = not_accepted_status(live, error, ObservedState(now=NOW, pods=pods))
    Status.model_validate({name: value for name, value in found.items() if value is not None})
    return found


def test_an_edit_that_is_not_accepted_says_so_and_keeps_what_serves() -> None:
    old = status(observed={"service": {"spec": {"ports": [{"port": 8000}]}}})
    found = rejected(old, pod(), pod(deleting=True), pod(ready=False))
    kept = ("endpoint", "selector", "artifact", "engine", "parity", "activeRevision", "desiredReplicas")
    assert {name: found.get(name) for name in kept} == {name: old.get(name) for name in kept}
    assert None not in [found.get(name) for name in kept]
    assert (found["phase"], found["ready"], found["replicas"], found["readyReplicas"]) == ("Degraded", "1/1", 2, 1)
    assert found["observedGeneration"] == 2
    assert {entry["type"]: (entry["status"], entry["reason"]) for entry in found["conditions"]} == {
        "Accepted": ("False", "ArgumentDenied"),
        "ArtifactReady": ("False", "NotAccepted"),
        "Verified": ("Unknown", "NotAccepted"),
        "Available": ("True", "Serving"),
        "UpToDate": ("False", "NotAccepted"),
        "Progressing": ("False", "NotAccepted"),
        "Degraded": ("True", "NotAccepted"),
        "UpdateAvailable": ("False", "NotAccepted"),
        "Ready": ("False", "ArgumentDenied"),
    }
    assert messages(found)["Available"] == "1 pod of an earlier spec is ready"
    assert messages(rejected(old, pod(), pod()))["Available"] == "2 pods of an earlier spec are ready"


def test_a_first_spec_that_is_not_accepted_has_failed() -> None:
    found = rejected({}, generation=1)
    assert (found["phase"], found["ready"], found["replicas"], found["desiredReplicas"]) == ("Failed", "0/0", 0, 0)
    assert reported(found, "Available", "Ready") == {
        "Available": ("False", "NotAccepted"),
        "Ready": ("False", "ArgumentDenied"),
    }


def test_children_of_a_deleted_model_are_waited_for() -> None:
    stale = tuple(f"Job j{number}" for number in range(4))
    found = waiting_for_deletion_status(MODEL, ObservedState(now=NOW, stale_children=stale))
    assert (found["phase"], found["replicas"], found["readyReplicas"]) == ("Pending", 0, 0)
    named = {entry["type"]: (entry["status"], entry["reason"]) for entry in found["conditions"]}
    waiting = "WaitingForDeletion"
    assert named.pop("Accepted") == ("True", "Accepted")
    assert (named.pop("Verified"), named.pop("Progressing")) == (("Unknown", waiting), ("True", waiting))
    assert set(named.values()) == {("False", waiting)}
    message = messages(found)["Ready"]
    assert "Job j2" in message
    assert "Job j3" not in message


def test_answers_that_cannot_be_compared_are_named_and_not_the_metrics_of_the_others() -> None:
    metric = {"name": "cosine", "value": "1", "threshold": "0.9"}
    message = "8 of 64 answers are wrong; first: case long, sent alone: 400: the text has 600 tokens"
    failed = {"result": "Failed", "metrics": [metric], "cases": 16, "worst": ["long"], "message": message}
    assert parity_message("r", "cpu", {**failed, "wrong": 8}) == (
        f"Revision r on cpu differs from the reference outputs: {message}"
    )
    assert "cosine 1 (threshold 0.9) in 16 cases; worst: long" in parity_message("r", "cpu", failed)
