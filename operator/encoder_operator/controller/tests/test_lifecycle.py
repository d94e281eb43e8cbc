"""Whole lives of an EncoderModel, on the real client and a fake API server."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from encoder_operator.client.errors import Unavailable
from encoder_operator.tests.harness import (
    PLUGIN,
    PREPARED,
    SETTINGS,
    Harness,
    annotate,
    encoder_model,
    failing_report,
    passing_report,
)


async def test_a_prep_pod_that_failed_is_not_believed_when_it_reports_an_artifact() -> None:
    harness = Harness()
    harness.prep = lambda job: (1, PREPARED)
    await harness.settle()
    assert harness.condition("ArtifactReady") == ("False", "PreparationFailed")
    assert harness.fake.of("controllerrevisions") == []


async def test_a_long_report_is_cut_to_what_the_status_allows_and_is_a_warning() -> None:
    harness = Harness()
    harness.prep = lambda job: (1, {"code": "ChecksumMismatch", "message": "x" * 3000})
    await harness.settle()
    assert harness.condition("Degraded") == ("True", "ChecksumMismatch")
    assert max(len(entry["message"]) for entry in harness.status["conditions"]) == 1024
    (event,) = [found for found in harness.fake.of("events") if found["reason"] == "ChecksumMismatch"]
    assert event["type"] == "Warning"
    assert len(event["message"]) == 1024


async def test_an_edit_that_is_not_accepted_keeps_what_clients_and_autoscalers_read() -> None:
    harness = Harness()
    await harness.settle()
    before = {name: harness.status[name] for name in ("selector", "endpoint", "replicas", "readyReplicas", "artifact")}
    harness.edit(lambda live: live["spec"].update(plugin="nobody_has_this"))
    await harness.settle()
    assert harness.condition("Accepted")[0] == "False"
    assert {name: harness.status[name] for name in before} == before


async def test_a_model_is_prepared_verified_and_served() -> None:
    harness = Harness()
    await harness.settle()
    names = ("Accepted", "ArtifactReady", "Verified", "Available", "UpToDate", "Ready")
    assert {harness.condition(name)[0] for name in names} == {"True"}
    assert harness.condition("Degraded") == ("False", "AsExpected")
    assert harness.condition("Progressing") == ("False", "Idle")
    assert harness.status["phase"] == "Serving"
    assert harness.status["readyReplicas"] == 1
    assert harness.endpoints() == [harness.status["activeRevision"]]
    assert harness.status["parity"]["metrics"][0]["value"] == "0.9999999"
    assert "candidateRevision" not in harness.status


async def test_at_rest_nothing_is_written() -> None:
    harness = Harness()
    await harness.settle()
    harness.fake.writes.clear()
    harness.reconciler = harness.operator()
    for _ in range(3):
        assert await harness.reconcile() is None
    assert harness.fake.writes == []


async def test_a_wiped_status_comes_back_the_same() -> None:
    harness = Harness()
    await harness.settle()
    before = copy.deepcopy(harness.status)
    harness.edit(lambda live: live.pop("status"))
    await harness.settle()
    without_times = [
        {k: v for k, v in entry.items() if k != "lastTransitionTime"} for entry in harness.status["conditions"]
    ]
    assert without_times == [
        {k: v for k, v in entry.items() if k != "lastTransitionTime"} for entry in before["conditions"]
    ]
    assert {k: v for k, v in harness.status.items() if k != "conditions"} == {
        k: v for k, v in before.items() if k != "conditions"
    }


async def test_a_corrected_spec_recovers_by_itself() -> None:
    harness = Harness()
    harness.change(args=["--pooler-config", '{"pooling_type": "CLS"}'])
    harness.parity = failing_report
    await harness.settle()
    harness.change(args=[])
    harness.parity = passing_report
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert len(harness.fake.of("jobs", component="prep")) == 1


@pytest.mark.complaint(11)
async def test_a_passing_update_never_leaves_the_service_without_an_endpoint() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    first = harness.status["activeRevision"]
    harness.change(maxModelLen=64)
    for _ in range(30):
        await harness.reconcile()
        harness.jobs()
        harness.deployment()
        assert len(harness.endpoints()) >= 2
    assert harness.status["activeRevision"] != first
    assert set(harness.endpoints()) == {harness.status["activeRevision"]}
    assert harness.condition("Ready") == ("True", "Ready")


async def test_a_failed_preparation_reports_its_reason_and_is_not_retried() -> None:
    harness = Harness()
    harness.prep = lambda job: (44, {"code": "RepositoryNotFound", "message": "no such repository"})
    await harness.settle()
    await harness.settle()
    assert harness.condition("ArtifactReady") == ("False", "RepositoryNotFound")
    assert harness.condition("Ready") == ("False", "RepositoryNotFound")
    assert harness.status["phase"] == "Failed"
    uids = {job["metadata"]["uid"] for job in harness.fake.of("jobs")}
    assert len(uids) == 1
    harness.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})
    harness.edit(annotate(retry="1"))
    await harness.settle()
    assert harness.condition("ArtifactReady") == ("False", "InsufficientSpace")
    assert uids.isdisjoint(job["metadata"]["uid"] for job in harness.fake.of("jobs"))


async def test_a_token_that_is_added_later_is_worth_another_try() -> None:
    harness = Harness()
    harness.prep = lambda job: (22, {"code": "AuthFailed", "message": "a token is needed"})
    await harness.settle()
    harness.prep = Harness().prep
    harness.edit(
        lambda live: live["spec"]["source"]["huggingFace"].update(tokenSecretRef={"name": "hub", "key": "token"})
    )
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    spec = harness.fake.of("jobs", component="prep")[0]["spec"]["template"]["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["artifacts", "tmp", "token"]
    assert "hub" not in str(harness.fake.of("deployments")[0])


async def test_a_new_default_image_changes_no_pod() -> None:
    harness = Harness()
    await harness.settle()
    pods = [pod["metadata"]["uid"] for pod in harness.fake.of("pods", component="serving")]
    newer = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: "engine:2"}}, "prep": {PLUGIN: "prep:2"}})
    harness.reconciler = harness.operator(SETTINGS.model_copy(update={"images": newer}))
    harness.fake.writes.clear()
    await harness.settle()
    assert harness.condition("UpdateAvailable") == ("True", "NewDefaults")
    assert harness.condition("Ready") == ("True", "Ready")
    assert [pod["metadata"]["uid"] for pod in harness.fake.of("pods", component="serving")] == pods
    assert harness.fake.writes == ["PATCH encodermodels/status minilm"]
    harness.edit(lambda live: live["metadata"].setdefault("annotations", {}).update({"encoders.dev/update": "1"}))
    await harness.settle()
    assert harness.condition("UpdateAvailable") == ("False", "Current")
    assert harness.fake.of("pods", component="serving")[0]["spec"]["containers"][0]["image"] == "engine:2"


async def test_suspending_removes_the_pods_and_keeps_the_verdict() -> None:
    harness = Harness()
    await harness.settle()
    harness.edit(lambda live: live["spec"].update(suspend=True))
    await harness.settle()
    assert harness.fake.of("pods", component="serving") == []
    assert harness.status["phase"] == "Suspended"
    assert harness.condition("ArtifactReady") == ("True", "Prepared")
    assert harness.condition("Verified") == ("True", "ParityPassed")
    assert harness.condition("Ready") == ("False", "Suspended")
    harness.edit(lambda live: live["spec"].update(suspend=False))
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert len(harness.fake.of("jobs", component="parity")) == 1


async def test_a_model_that_is_born_suspended_starts_nothing() -> None:
    manifest = encoder_model()
    manifest["spec"]["suspend"] = True
    harness = Harness(manifest)
    await harness.settle()
    assert [write for write in harness.fake.writes if "events" not in write] == ["PATCH encodermodels/status minilm"]
    assert harness.condition("ArtifactReady") == ("False", "Suspended")


@pytest.mark.complaint(24)
async def test_a_foreign_edit_is_put_back_and_a_foreign_field_is_left_alone() -> None:
    harness = Harness()
    await harness.settle()
    changed = copy.deepcopy(harness.fake.of("services")[0])
    changed["spec"]["ports"][0]["targetPort"] = 1234
    changed["metadata"]["annotations"] = {"somebody": "else"}
    harness.fake.put("services", changed)
    harness.fake.writes.clear()
    await harness.reconcile()
    assert harness.fake.writes == ["PATCH services minilm"]
    assert harness.fake.of("services")[0]["spec"]["ports"][0]["targetPort"] == "http"
    assert harness.fake.of("services")[0]["metadata"]["annotations"] == {"somebody": "else"}


async def test_a_refused_spec_leaves_what_serves_alone() -> None:
    harness = Harness()
    await harness.settle()
    harness.change(args=["--trust-remote-code"])
    harness.fake.writes.clear()
    await harness.settle()
    assert harness.condition("Accepted") == ("False", "ArgumentDenied")
    assert harness.condition("Available") == ("True", "Serving")
    assert harness.condition("Ready") == ("False", "ArgumentDenied")
    assert [write for write in harness.fake.writes if "events" not in write] == ["PATCH encodermodels/status minilm"]
    pod = harness.fake.of("pods", component="serving")[0]
    harness.fake.remove("pods", "demo", pod["metadata"]["name"])
    await harness.settle()
    assert len(harness.endpoints()) == 1


@pytest.mark.parametrize(("served", "phase"), [(True, "Degraded"), (False, "Failed")])
async def test_a_rejected_spec_is_degraded_whether_or_not_pods_serve(served: bool, phase: str) -> None:
    harness = Harness()
    if served:
        await harness.settle()
    harness.change(args=["--trust-remote-code"])
    await harness.settle()
    assert harness.condition("Degraded") == ("True", "NotAccepted")
    assert "--trust-remote-code" in harness.message("Accepted")
    assert harness.message("Degraded") == "The spec is not accepted: see condition Accepted"
    assert harness.status["phase"] == phase
    # an edit of the spec is an event
    assert await harness.reconcile() is None


async def test_a_foreign_service_of_the_same_name_is_never_taken_over() -> None:
    harness = Harness()
    harness.fake.put("services", {"kind": "Service", "metadata": {"name": "minilm", "namespace": "demo"}, "spec": {}})
    await harness.settle()
    assert harness.condition("Accepted") == ("False", "NameConflict")
    # no event says when the other Service is gone
    assert await harness.reconcile() == 30.0
    assert harness.fake.of("services", component="serving") == []
    assert harness.fake.of("jobs") == []


async def test_a_namesakes_leftovers_are_waited_for() -> None:
    harness = Harness()
    old = {"kind": "EncoderModel", "name": "minilm", "uid": "old", "controller": True}
    labels = {"encoders.dev/model": "minilm", "encoders.dev/component": "prep"}
    harness.fake.put(
        "jobs", {"metadata": {"name": "minilm-0-prep", "namespace": "demo", "labels": labels, "ownerReferences": [old]}}
    )
    assert await harness.reconcile() == 1.0
    assert harness.condition("Progressing") == ("True", "WaitingForDeletion")
    assert len(harness.fake.of("jobs")) == 1
    harness.fake.remove("jobs", "demo", "minilm-0-prep")
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


async def test_deleting_the_model_keeps_the_artifact_for_the_next_one() -> None:
    harness = Harness()
    await harness.settle()
    harness.fake.remove("encodermodels", "demo", "minilm")
    assert await harness.reconcile() is None
    kinds = {kind for kind, _, _ in harness.fake.objects}
    assert kinds <= {"persistentvolumeclaims", "events"}
    harness.fake.put("encodermodels", encoder_model())
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


async def test_the_artifact_is_prepared_again_for_a_recreated_pvc() -> None:
    harness = Harness()
    await harness.settle()
    harness.fake.remove("persistentvolumeclaims", "demo", "minilm-artifacts")
    for job in harness.fake.of("jobs", component="prep"):
        harness.fake.remove("jobs", "demo", job["metadata"]["name"])
    revision = harness.status["activeRevision"]
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert harness.status["activeRevision"] == revision
    assert len(harness.fake.of("jobs", component="prep")) == 1


async def test_history_is_bounded() -> None:
    harness = Harness()
    for length in range(64, 76):
        harness.change(maxModelLen=length)
        await harness.settle()
    revisions = harness.fake.of("controllerrevisions", component="revision")
    assert len(revisions) <= 5
    hashes = {found["metadata"]["labels"]["encoders.dev/revision"] for found in revisions}
    verdicts = harness.fake.of("controllerrevisions", component="verdict")
    assert {found["metadata"]["labels"]["encoders.dev/revision"] for found in verdicts} <= hashes


def ends(harness: Harness, status: dict[str, Any]) -> None:
    """End the oldest serving pod for good, as a node does that shuts down or needs room; its object stays."""
    pod = copy.deepcopy(harness.fake.of("pods", component="serving")[0])
    labels = {**pod["metadata"]["labels"]}
    harness.fake.put(
        "pods",
        {
            "metadata": {**pod["metadata"], "name": "minilm-ended", "uid": "ended", "labels": labels},
            "spec": pod["spec"],
            "status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False"}], **status},
        },
    )


@pytest.mark.parametrize(
    "status",
    [
        {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
        {
            "reason": "Terminated",
            "containerStatuses": [{"name": "engine", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}],
        },
    ],
)
async def test_a_pod_that_has_ended_for_good_is_history_once_another_serves(status: dict[str, Any]) -> None:
    harness = Harness()
    await harness.settle()
    ends(harness, status)
    await harness.reconcile()
    assert harness.condition("Progressing") == ("False", "Idle")
    assert harness.condition("Degraded") == ("False", "AsExpected")
    assert harness.condition("Ready") == ("True", "Ready")
    assert (harness.status["phase"], harness.status["replicas"]) == ("Serving", 1)


async def test_repeated_evictions_are_reported_until_a_pod_serves() -> None:
    harness = Harness()
    harness.starts = lambda pod: pod["status"].update(conditions=[{"type": "Ready", "status": "False"}])
    for _ in range(4):
        await harness.reconcile()
        harness.jobs()
        harness.deployment()
    assert harness.condition("Progressing") == ("True", "Starting")
    ends(harness, {"reason": "Evicted"})
    await harness.reconcile()
    assert harness.condition("Progressing") == ("False", "Evicted")
    assert harness.condition("Degraded") == ("False", "AsExpected")


async def test_a_refused_spec_counts_the_pods_that_an_autoscaler_may_count() -> None:
    harness = Harness()
    await harness.settle()
    ends(harness, {"reason": "Evicted"})
    leaving = copy.deepcopy(harness.fake.of("pods", component="serving")[0])
    leaving["metadata"] |= {"name": "minilm-leaving", "uid": "leaving", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    harness.fake.put("pods", leaving)
    harness.change(args=["--trust-remote-code"])
    await harness.reconcile()
    assert harness.condition("Accepted") == ("False", "ArgumentDenied")
    assert (harness.status["replicas"], harness.status["readyReplicas"]) == (1, 1)


def waits(pod: dict[str, Any]) -> None:
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "engine", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
        ],
    }


async def test_the_status_reports_why_the_verified_revision_does_not_come_back() -> None:
    harness = Harness()
    harness.edit(lambda live: live["spec"].update(rollout={"strategy": "Recreate"}))
    await harness.settle()
    harness.change(maxModelLen=64)
    harness.parity = failing_report
    for _ in range(20):
        await harness.reconcile()
        harness.jobs()
        if harness.condition("UpToDate")[1] == "ParityFailed":
            harness.starts = waits
        harness.deployment()
    assert harness.condition("UpToDate") == ("False", "ParityFailed")
    assert harness.condition("Available") == ("False", "ImagePullFailed")
    assert harness.message("Available") == "no such image"
    assert harness.condition("Progressing") == ("False", "ImagePullFailed")
    # what the person's spec did wrong is still the first thing to know
    assert harness.condition("Degraded") == ("True", "ParityFailed")


async def test_problems_of_the_candidate_are_reported_before_others() -> None:
    harness = Harness(encoder_model(replicas=2))
    await harness.settle()
    harness.starts = waits
    harness.change(maxModelLen=64)
    await harness.settle()
    broken = copy.deepcopy(harness.fake.of("pods", component="serving"))
    first = next(pod for pod in broken if pod["status"]["phase"] == "Running")
    first["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    terminated = {"exitCode": 1, "message": "the artifact was changed"}
    first["status"]["containerStatuses"][0] |= {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": terminated},
    }
    harness.fake.put("pods", first)
    await harness.reconcile()
    assert harness.message("Progressing") == "no such image"
    harness.run_pods()
    harness.fake.put("pods", first)
    await harness.reconcile()
    assert harness.condition("Degraded") == ("True", "CrashLoop")
    assert "the artifact was changed" in harness.message("Degraded")


async def test_an_unavailable_api_server_is_a_failure_to_try_again() -> None:
    harness = Harness()
    harness.fake.fail_next = [(429, {"Retry-After": "7"})]
    with pytest.raises(Unavailable) as caught:
        await harness.reconcile()
    assert caught.value.retry_after == 7.0


async def test_a_model_scaled_to_nothing_waits_for_nothing() -> None:
    harness = Harness()
    await harness.settle()
    harness.change(replicas=0)
    await harness.settle()
    assert harness.status["phase"] == "Suspended"
    assert harness.condition("Degraded") == ("False", "AsExpected")
    harness.change(replicas=1)
    await harness.settle()
    assert harness.status["phase"] == "Serving"


@pytest.mark.parametrize("code", ["Stalled", "RateLimited", "DownloadFailed"])
async def test_an_aborted_download_is_reported(code: str) -> None:
    harness = Harness()
    harness.prep = lambda job: (75, {"code": code, "message": "the hub was silent"})
    await harness.settle()
    assert harness.condition("Degraded") == ("True", code)
    assert {event["reason"] for event in harness.fake.of("events")} == {"PrepStarted", code, "Degraded"}


async def test_what_is_written_is_logged_and_an_event_is_named_by_its_content() -> None:
    harness = Harness()
    succeeds, harness.prep = harness.prep, lambda job: (44, {"code": "RepositoryNotFound", "message": "not there"})
    with capture_logs() as logs:
        await harness.settle()
        harness.prep = succeeds
        harness.edit(annotate(retry="1"))
        await harness.settle()
        harness.change(maxModelLen=64)
        await harness.settle()

    def logged(event: str, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(entry[name] for name in names) for entry in logs if entry["event"] == event]

    assert logged("delete", "kind", "child") == [("Job", logged("apply", "child")[1][0])]
    kinds = [kind for kind, exists in logged("apply", "kind", "exists") if not exists]
    assert kinds.count("Job") == 4
    assert kinds.count("Deployment") == 1
    assert ("Deployment", True) in logged("apply", "kind", "exists")
    (pod,) = harness.fake.of("pods", component="serving")
    assert logged("gate", "pod", "open")[-1] == (pod["metadata"]["name"], True)
    events = harness.fake.of("events")
    assert {event["count"] for event in events} == {1}
    assert {event["type"] for event in events} == {"Normal", "Warning"}
    assert all(re.fullmatch(r"minilm\.[0-9a-f]{16}", event["metadata"]["name"]) for event in events)
