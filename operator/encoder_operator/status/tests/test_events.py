"""Events of changes between two statuses, from statuses made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.revisions.hashing import Json
from encoder_operator.status.events import events_for


def status(*conditions: tuple[str, str, str], **fields: Any) -> Json:
    """Return a status with conditions of type, status and reason."""
    listed = [
        {"type": name, "status": value, "reason": reason, "message": f"{name} says {reason}"}
        for name, value, reason in conditions
    ]
    return {"desiredReplicas": 1, "readyReplicas": 1, **fields, "conditions": listed}


def found(old: Json, new: Json) -> list[tuple[bool, str, str]]:
    return [(event.warning, str(event.reason), event.message) for event in events_for(old, new)]


@pytest.mark.parametrize(
    "reason",
    [
        *("InvalidSpec", "UnknownPlugin", "UnsupportedAccelerator", "ArgumentDenied", "EnvironmentDenied"),
        *("PodTemplateDenied", "LoadFormatUnsupported", "RemoteCodeDenied", "NotPermitted", "OneNodeOnly"),
        *(
            "OnePodOnly",
            "NoImage",
            "NameConflict",
            "ClaimMissing",
            "InputsMissing",
            "LabelSetMissing",
            "TokenSecretMissing",
        ),
        *("VolumeNotMounted", "AuthFailed", "RepositoryNotFound", "RevisionNotFound", "FileNotFound"),
        *("InsufficientSpace", "ChecksumMismatch", "Unsupported", "UnsupportedFilesystem", "PickleRefused"),
        *("RemoteCodeRefused", "Stalled", "RateLimited", "DownloadFailed", "OutOfMemory", "DeadlineExceeded"),
        *("PreparationFailed", "ImagePullFailed", "InsufficientGPU", "CrashLoop", "PodsRefused", "WriteRefused"),
        *("ProgressDeadlineExceeded", "GatewayApiMissing", "ForeignField", "ParityFailed", "Inconclusive"),
    ],
)
def test_a_problem_is_a_warning_once_with_the_message_of_the_condition_that_has_the_details(reason: str) -> None:
    before = status(("ArtifactReady", "False", "Preparing"), ("Ready", "False", "Preparing"))
    after = status(("ArtifactReady", "False", reason), ("Ready", "False", reason))
    assert found(before, after) == [(True, reason, f"ArtifactReady says {reason}")]
    assert found(after, after) == []


@pytest.mark.parametrize("reason", ["Preparing", "Queued", "ClaimPending", "Evicted", "Unschedulable", "Suspended"])
def test_what_passes_by_itself_or_was_requested_is_no_event(reason: str) -> None:
    before = status(("ArtifactReady", "True", "Prepared"))
    assert found(before, status(("ArtifactReady", "False", reason), ("Ready", "False", reason))) == []


@pytest.mark.parametrize(
    ("condition", "reason", "elsewhere"),
    [
        ("Accepted", "RemoteCodeTrusted", "Degraded"),
        ("ArtifactReady", "Prepared", "UpToDate"),
        ("Available", "ScaledToZero", "Ready"),
        ("Ready", "Ready", "Available"),
    ],
)
def test_a_step_is_a_normal_event_of_one_condition(condition: str, reason: str, elsewhere: str) -> None:
    assert found(status(), status((condition, "True", reason))) == [(False, reason, f"{condition} says {reason}")]
    assert found(status(), status((elsewhere, "False", reason))) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ({}, {"candidateRevision": "b"}, "Rolling out revision b to 1 pod"),
        ({}, {"activeRevision": "a"}, "Rolling out revision a to 1 pod"),
        (
            {"activeRevision": "a"},
            {"activeRevision": "a", "candidateRevision": "b", "desiredReplicas": 2},
            "Rolling out revision b to 2 pods instead of revision a",
        ),
        ({"activeRevision": "a", "candidateRevision": "b"}, {"activeRevision": "b"}, ""),
        ({"activeRevision": "a", "candidateRevision": "b"}, {"activeRevision": "a"}, ""),
        ({"activeRevision": "a"}, {"activeRevision": "a"}, ""),
    ],
)
def test_the_start_of_a_rollout_is_an_event(old: Json, new: Json, message: str) -> None:
    assert found(status(**old), status(**new)) == ([(False, "RolloutStarted", message)] if message else [])


def test_pods_of_a_status_without_counts_are_none() -> None:
    before = status(("Degraded", "False", "AsExpected"))
    after = status(("Degraded", "True", "Evicted"), candidateRevision="b")
    for found_in in (before, after):
        del found_in["readyReplicas"]
    del after["desiredReplicas"]
    assert [message for _, _, message in found(before, after)] == [
        "Rolling out revision b to 0 pods",
        "Degraded because of Evicted: 0 of 0 pods are ready",
    ]


@pytest.mark.parametrize(
    ("old", "new", "started"),
    [
        ("", "m-r1-parity-1", True),
        ("m-r1-parity-1", "m-r1-parity-1", False),
        ("m-r1-parity-9", "m-r1-parity-10", True),
        ("m-r1-parity-2", "m-r1-parity-1", False),
        ("m-r1-parity-2", "", False),
    ],
)
def test_a_later_attempt_of_a_parity_check_is_an_event(old: str, new: str, started: bool) -> None:
    message = f"Job {new} compares revision r1 with the reference outputs"
    expected = [(False, "ParityStarted", message)] if started else []
    assert found(status(parityJob=old), status(parityJob=new)) == expected


def test_a_prep_job_is_an_event_once() -> None:
    assert found(status(), status(prepJob="p")) == [(False, "PrepStarted", "Job p prepares the checkpoint")]
    assert found(status(prepJob="p"), status(prepJob="p")) == found(status(prepJob="p"), status()) == []


def test_a_status_of_the_first_version_reports_no_start() -> None:
    old, new = (
        status(("Ready", "True", "Ready")),
        status(("Ready", "True", "Ready"), prepJob="p", candidateRevision="b"),
    )
    del old["desiredReplicas"]
    assert found(old, new) == []
    # a new model has no conditions
    assert [reason for _, reason, _ in found({}, new)] == ["PrepStarted", "RolloutStarted", "Ready"]


def test_a_parity_check_that_passed_is_an_event_unless_it_was_there_before() -> None:
    check = {"result": "Passed", "revision": "r1", "accelerator": "L4", "metrics": [], "cases": 3}
    (event,) = found(status(), status(candidateParity=check))
    assert event[:2] == (False, "ParityPassed")
    assert "Revision r1 on L4 matches" in event[2]
    assert found(status(candidateParity=check), status(parity=check)) == []
    assert found(status(parity=check), status(candidateParity=check)) == []
    assert found(status(), status(parity={**check, "result": "Failed"})) == []
    assert len(found(status(parity=check), status(parity={**check, "accelerator": "H100"}))) == 1


@pytest.mark.parametrize("reason", ["ParityFailed", "ProgressDeadlineExceeded"])
def test_a_rollback_names_both_revisions(reason: str) -> None:
    before, given_up = ("UpToDate", "True", "Current"), ("UpToDate", "False", reason)

    def rolled_back(**fields: Any) -> list[str]:
        events = found(status(before), status(given_up, **fields))
        return [message for warning, name, message in events if warning and name == "RolledBack"]

    both = {"activeRevision": "a", "candidateRevision": "b"}
    assert rolled_back(**both) == [f"Rolled back from revision b to revision a: UpToDate says {reason}"]
    assert rolled_back(activeRevision="a") == rolled_back(candidateRevision="b") == []
    waits = found(status(before), status(("UpToDate", "False", "Inconclusive"), **both))
    assert "RolledBack" not in [name for _, name, _ in waits]


def test_degraded_is_an_event_when_it_begins() -> None:
    fine, broken = ("Degraded", "False", "AsExpected"), ("Degraded", "True", "Evicted")
    expected = [(True, "Degraded", "Degraded because of Evicted: 1 of 2 pods of revision a are ready")]
    fields = {"activeRevision": "a", "desiredReplicas": 2}
    old = status(fine, activeRevision="a")
    assert found(old, status(broken, **fields)) == expected
    assert found(status(activeRevision="a"), status(broken, **fields)) == expected
    assert found(status(broken, **fields), status(("Degraded", "True", "NodeLost"), **fields)) == []
    assert found(status(broken, **fields), status(fine, **fields)) == []


def test_equal_events_are_one() -> None:
    check = {"result": "Passed", "revision": "r1", "accelerator": "L4", "metrics": [], "cases": 3}
    events = events_for(status(), status(parity=check, candidateParity=dict(check)))
    assert len(events) == 1
