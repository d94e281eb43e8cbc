"""What a user sees of a model's transitions: Events with numbers and names, one log line each, and a status that names engine and Jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from encoder_operator.tests.harness import Harness, encoder_model, failing_report, report


def events(harness: Harness) -> list[tuple[str, str, str]]:
    """Return type, reason and message of all Events in the order in which they were posted."""
    return [(found["type"], found["reason"], found["message"]) for found in harness.fake.of("events")]


def new_events(harness: Harness, before: list[tuple[str, str, str]]) -> dict[str, tuple[str, str]]:
    """Return type and message by reason."""
    return {
        reason: (kind, message) for kind, reason, message in events(harness) if (kind, reason, message) not in before
    }


async def test_events_report_each_step_to_ready() -> None:
    harness = Harness()
    await harness.settle()
    active = harness.status["activeRevision"]
    assert new_events(harness, []) == {
        "PrepStarted": ("Normal", f"Job {harness.status['prepJob']} prepares the checkpoint"),
        "Prepared": ("Normal", f"The artifact has 91.0 MB and the digest {harness.status['artifact']['digest']}"),
        "RolloutStarted": ("Normal", f"Rolling out revision {active} to 1 pod"),
        "ParityStarted": (
            "Normal",
            f"Job minilm-{active}-parity-1 compares revision {active} with the reference outputs",
        ),
        "ParityPassed": (
            "Normal",
            f"Revision {active} on cpu matches the reference outputs within tolerance: cosine 0.9999999 (threshold 0.99999) in 48 cases",
        ),
        "Ready": ("Normal", f"1 pod of revision {active} serves traffic"),
    }


async def test_events_of_a_failed_update_name_both_revisions_and_the_numbers() -> None:
    harness = Harness()
    await harness.settle()
    active, before = harness.status["activeRevision"], events(harness)
    harness.parity = failing_report
    harness.change(args=["--seed", "1"])
    await harness.settle()
    candidate = harness.status["candidateRevision"]
    found = new_events(harness, before)
    assert found["RolloutStarted"] == (
        "Normal",
        f"Rolling out revision {candidate} to 1 pod instead of revision {active}",
    )
    failed = f"Revision {candidate} on cpu differs from the reference outputs: cosine 0.812 (threshold 0.99999) in 48 cases; worst: long-1"
    assert found["ParityFailed"] == ("Warning", failed)
    assert found["RolledBack"] == ("Warning", f"Rolled back from revision {candidate} to revision {active}: {failed}")
    assert found["Degraded"] == (
        "Warning",
        f"Degraded because of ParityFailed: 1 of 1 pod of revision {active} is ready",
    )
    # the verified revision still serves: no second Event about it
    assert "ParityPassed" not in found


async def test_an_event_is_no_longer_than_the_api_server_accepts() -> None:
    harness = Harness()
    await harness.settle()
    before = events(harness)
    harness.parity = lambda job: failing_report(job) | {"worst": ["x" * 2000]}
    harness.change(args=["--seed", "1"])
    await harness.settle()
    found = new_events(harness, before)
    assert {reason: len(found[reason][1]) for reason in ("ParityFailed", "RolledBack")} == {
        "ParityFailed": 1024,
        "RolledBack": 1024,
    }


async def test_an_update_that_passes_reports_its_own_numbers() -> None:
    harness = Harness()
    await harness.settle()
    before = events(harness)
    harness.parity = lambda job: report(job, "Passed", "0.9999991")
    harness.change(args=["--seed", "1"])
    await harness.settle()
    kind, message = new_events(harness, before)["ParityPassed"]
    assert kind == "Normal"
    assert f"Revision {harness.status['activeRevision']} on cpu" in message
    assert "cosine 0.9999991" in message


async def test_an_upgrade_of_the_operator_reports_no_start_of_anything() -> None:
    harness = Harness()
    await harness.settle()
    before = events(harness)
    new = ("ready", "desiredReplicas", "prepJob", "parityJob", "engine")
    harness.edit(lambda live: [live["status"].pop(field) for field in new])
    await harness.settle()
    assert harness.status["prepJob"]
    assert events(harness) == before


async def test_scaling_to_zero_is_an_event() -> None:
    harness = Harness()
    await harness.settle()
    before = events(harness)
    harness.change(replicas=0)
    await harness.settle()
    assert new_events(harness, before) == {"ScaledToZero": ("Normal", "spec.serving.replicas is 0")}
    assert harness.status["ready"] == "0/0"


@pytest.mark.parametrize("served", [False, True], ids=["first revision", "update"])
async def test_a_revision_that_waits_for_replicas_reports_that(served: bool) -> None:
    harness = Harness(encoder_model(replicas=int(served)))
    await harness.settle()
    if served:
        harness.change(replicas=0)
        await harness.settle()
        harness.change(maxModelLen=64)
        await harness.settle()
    assert harness.condition("UpToDate")[0] == "False"
    assert harness.condition("Ready") == harness.condition("Progressing") == ("False", "ScaledToZero")
    assert harness.message("Ready") == "spec.serving.replicas is 0"
    harness.change(replicas=1)
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


async def test_nothing_is_verified_or_failed_before_a_comparison() -> None:
    harness = Harness()
    seen: list[tuple[str, str]] = []
    for _ in range(8):
        await harness.reconcile()
        seen.append(harness.condition("Verified"))
        harness.jobs()
        harness.deployment()
    assert list(dict.fromkeys(seen)) == [
        ("Unknown", "NotVerified"),
        ("Unknown", "ParityPending"),
        ("Unknown", "ParityRunning"),
        ("True", "ParityPassed"),
    ]


async def test_the_status_names_engine_jobs_and_desired_pods() -> None:
    harness = Harness()
    versions = {"vllm": "0.32.0", "plugin": "0.2.0"}
    harness.parity = lambda job: report(job, "Passed", "1.0") | {"versions": versions}
    await harness.settle()
    status = harness.status
    assert status["engine"] == {
        "image": "encoder-operator/engine-sentence_transformer:0.1.0-cpu",
        "imageID": "sha256:1",
        "accelerator": "cpu",
        "dtype": "float32",
        "pluginVersion": "0.2.0",
        "vllmVersion": "0.32.0",
    }
    assert {job["metadata"]["name"] for job in harness.fake.of("jobs")} == {status["prepJob"], status["parityJob"]}
    assert (status["desiredReplicas"], status["ready"]) == (1, "1/1")


async def test_each_transition_of_a_condition_is_one_log_line() -> None:
    harness = Harness()
    with capture_logs() as lines:
        await harness.settle()
        logged = conditions(lines)
        await harness.reconcile()
    assert conditions(lines) == logged
    # the last line about each condition is its state
    last = {line["type"]: (line["status"], line["reason"], line["message"]) for line in logged}
    assert last == {
        entry["type"]: (entry["status"], entry["reason"], entry["message"]) for entry in harness.status["conditions"]
    } | {entry: last[entry] for entry in last if last[entry][:2] == harness.condition(entry)}
    ready = [(line["status"], line["reason"]) for line in logged if line["type"] == "Ready"]
    assert ready[-1] == ("True", "Ready")
    assert len(ready) == len(set(ready))


def conditions(lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["event"] == "condition"]


async def test_a_model_that_a_finalizer_keeps_is_not_reported_as_ready() -> None:
    harness = Harness()
    await harness.settle()
    harness.edit(lambda live: live["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["a.b/c"]))
    harness.fake.writes.clear()
    with capture_logs() as lines:
        await harness.reconcile()
    assert harness.condition("Ready") == ("False", "WaitingForDeletion")
    assert harness.condition("Progressing") == ("True", "WaitingForDeletion")
    # in the log as any other change of a condition
    assert {line["type"]: line["status"] for line in conditions(lines)} == {"Ready": "False", "Progressing": "True"}
    # its pods still serve
    assert (harness.condition("Available")[0], harness.status["ready"]) == ("True", "1/1")
    for pod in harness.fake.of("pods", component="serving"):
        harness.fake.remove("pods", "demo", pod["metadata"]["name"])
    for _ in range(2):
        await harness.reconcile()
    assert harness.condition("Available") == ("False", "WaitingForDeletion")
    assert (harness.status["phase"], harness.status["ready"], harness.status["replicas"]) == ("Pending", "0/1", 0)
    assert harness.fake.writes == ["PATCH encodermodels/status minilm"] * 2
