"""Whole lives of an EncoderModel, on the real client and a fake API server."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from encoder_operator.client.errors import Unavailable
from encoder_operator.tests.world import PLUGIN, SETTINGS, World, annotate, fails, model, passes


async def test_a_model_is_prepared_verified_and_served() -> None:
    world = World()
    await world.settle()
    names = ("Accepted", "ArtifactReady", "Verified", "Available", "UpToDate", "Ready")
    assert {world.condition(name)[0] for name in names} == {"True"}
    assert world.condition("Degraded") == ("False", "AsExpected")
    assert world.condition("Progressing") == ("False", "Idle")
    assert world.status["phase"] == "Serving"
    assert world.status["readyReplicas"] == 1
    assert world.endpoints() == [world.status["activeRevision"]]
    assert world.status["parity"]["metrics"][0]["value"] == "0.9999999"
    assert "candidateRevision" not in world.status


async def test_at_rest_nothing_is_written() -> None:
    world = World()
    await world.settle()
    world.fake.writes.clear()
    world.reconciler = world.operator()
    for _ in range(3):
        assert await world.look() is None
    assert world.fake.writes == []


async def test_a_wiped_status_comes_back_the_same() -> None:
    world = World()
    await world.settle()
    before = copy.deepcopy(world.status)
    world.edit(lambda live: live.pop("status"))
    await world.settle()
    without_times = [
        {k: v for k, v in entry.items() if k != "lastTransitionTime"} for entry in world.status["conditions"]
    ]
    assert without_times == [
        {k: v for k, v in entry.items() if k != "lastTransitionTime"} for entry in before["conditions"]
    ]
    assert {k: v for k, v in world.status.items() if k != "conditions"} == {
        k: v for k, v in before.items() if k != "conditions"
    }


async def test_a_corrected_spec_recovers_by_itself() -> None:
    world = World()
    world.change(args=["--pooler-config", '{"pooling_type": "CLS"}'])
    world.parity = fails
    await world.settle()
    world.change(args=[])
    world.parity = passes
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert len(world.fake.of("jobs", component="prep")) == 1


@pytest.mark.complaint(11)
async def test_a_passing_update_never_leaves_the_service_without_an_endpoint() -> None:
    world = World(model(replicas=2))
    await world.settle()
    first = world.status["activeRevision"]
    world.change(maxModelLen=64)
    for _ in range(30):
        await world.look()
        world.jobs()
        world.deployment()
        assert len(world.endpoints()) >= 2
    assert world.status["activeRevision"] != first
    assert set(world.endpoints()) == {world.status["activeRevision"]}
    assert world.condition("Ready") == ("True", "Ready")


async def test_a_failed_preparation_says_why_and_is_not_tried_again() -> None:
    world = World()
    world.prep = lambda job: (44, {"code": "RepositoryNotFound", "message": "no such repository"})
    await world.settle()
    await world.settle()
    assert world.condition("ArtifactReady") == ("False", "RepositoryNotFound")
    assert world.condition("Ready") == ("False", "RepositoryNotFound")
    assert world.status["phase"] == "Failed"
    uids = {job["metadata"]["uid"] for job in world.fake.of("jobs")}
    assert len(uids) == 1
    world.prep = lambda job: (28, {"code": "InsufficientSpace", "message": "10 GB too little"})
    world.edit(annotate(retry="1"))
    await world.settle()
    assert world.condition("ArtifactReady") == ("False", "InsufficientSpace")
    assert uids.isdisjoint(job["metadata"]["uid"] for job in world.fake.of("jobs"))


async def test_a_token_that_is_added_later_is_worth_another_try() -> None:
    world = World()
    world.prep = lambda job: (22, {"code": "AuthFailed", "message": "a token is needed"})
    await world.settle()
    world.prep = World().prep
    world.edit(
        lambda live: live["spec"]["source"]["huggingFace"].update(tokenSecretRef={"name": "hub", "key": "token"})
    )
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    spec = world.fake.of("jobs", component="prep")[0]["spec"]["template"]["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["artifacts", "tmp", "token"]
    assert "hub" not in str(world.fake.of("deployments")[0])


async def test_a_new_default_image_changes_no_pod() -> None:
    world = World()
    await world.settle()
    pods = [pod["metadata"]["uid"] for pod in world.fake.of("pods", component="serving")]
    newer = SETTINGS.images.model_copy(update={"engine": {"cpu": {PLUGIN: "engine:2"}}, "prep": {PLUGIN: "prep:2"}})
    world.reconciler = world.operator(SETTINGS.model_copy(update={"images": newer}))
    world.fake.writes.clear()
    await world.settle()
    assert world.condition("UpdateAvailable") == ("True", "NewDefaults")
    assert world.condition("Ready") == ("True", "Ready")
    assert [pod["metadata"]["uid"] for pod in world.fake.of("pods", component="serving")] == pods
    assert world.fake.writes == ["PATCH encodermodels/status minilm"]
    world.edit(lambda live: live["metadata"].setdefault("annotations", {}).update({"encoders.dev/update": "1"}))
    await world.settle()
    assert world.condition("UpdateAvailable") == ("False", "Current")
    assert world.fake.of("pods", component="serving")[0]["spec"]["containers"][0]["image"] == "engine:2"


async def test_suspending_takes_the_pods_and_keeps_the_proof() -> None:
    world = World()
    await world.settle()
    world.edit(lambda live: live["spec"].update(suspend=True))
    await world.settle()
    assert world.fake.of("pods", component="serving") == []
    assert world.status["phase"] == "Suspended"
    assert world.condition("ArtifactReady") == ("True", "Prepared")
    assert world.condition("Verified") == ("True", "ParityPassed")
    assert world.condition("Ready") == ("False", "Suspended")
    world.edit(lambda live: live["spec"].update(suspend=False))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert len(world.fake.of("jobs", component="parity")) == 1


async def test_a_model_that_is_born_suspended_starts_nothing() -> None:
    manifest = model()
    manifest["spec"]["suspend"] = True
    world = World(manifest)
    await world.settle()
    assert [write for write in world.fake.writes if "events" not in write] == ["PATCH encodermodels/status minilm"]
    assert world.condition("ArtifactReady") == ("False", "Suspended")


@pytest.mark.complaint(24)
async def test_a_foreign_edit_is_put_back_and_a_foreign_field_is_left_alone() -> None:
    world = World()
    await world.settle()
    changed = copy.deepcopy(world.fake.of("services")[0])
    changed["spec"]["ports"][0]["targetPort"] = 1234
    changed["metadata"]["annotations"] = {"somebody": "else"}
    world.fake.put("services", changed)
    world.fake.writes.clear()
    await world.look()
    assert world.fake.writes == ["PATCH services minilm"]
    assert world.fake.of("services")[0]["spec"]["ports"][0]["targetPort"] == "http"
    assert world.fake.of("services")[0]["metadata"]["annotations"] == {"somebody": "else"}


async def test_a_refused_spec_leaves_what_serves_alone() -> None:
    world = World()
    await world.settle()
    world.change(args=["--trust-remote-code"])
    world.fake.writes.clear()
    await world.settle()
    assert world.condition("Accepted") == ("False", "ArgumentDenied")
    assert world.condition("Available") == ("True", "Serving")
    assert world.condition("Ready") == ("False", "ArgumentDenied")
    assert [write for write in world.fake.writes if "events" not in write] == ["PATCH encodermodels/status minilm"]
    pod = world.fake.of("pods", component="serving")[0]
    world.fake.remove("pods", "demo", pod["metadata"]["name"])
    await world.settle()
    assert len(world.endpoints()) == 1


@pytest.mark.parametrize(("served", "phase"), [(True, "Degraded"), (False, "Failed")])
async def test_a_refused_spec_needs_a_person_whether_or_not_anything_serves(served: bool, phase: str) -> None:
    world = World()
    if served:
        await world.settle()
    world.change(args=["--trust-remote-code"])
    await world.settle()
    assert world.condition("Degraded") == ("True", "NotAccepted")
    assert "--trust-remote-code" in world.said("Degraded")
    assert world.status["phase"] == phase


async def test_somebody_elses_service_of_the_same_name_is_never_taken_over() -> None:
    world = World()
    world.fake.put("services", {"kind": "Service", "metadata": {"name": "minilm", "namespace": "demo"}, "spec": {}})
    await world.settle()
    assert world.condition("Accepted") == ("False", "NameConflict")
    assert world.fake.of("services", component="serving") == []
    assert world.fake.of("jobs") == []


async def test_a_namesakes_leftovers_are_waited_for() -> None:
    world = World()
    old = {"kind": "EncoderModel", "name": "minilm", "uid": "old", "controller": True}
    labels = {"encoders.dev/model": "minilm", "encoders.dev/component": "prep"}
    world.fake.put(
        "jobs", {"metadata": {"name": "minilm-0-prep", "namespace": "demo", "labels": labels, "ownerReferences": [old]}}
    )
    assert await world.look() == 1.0
    assert world.condition("Progressing") == ("True", "WaitingForDeletion")
    assert len(world.fake.of("jobs")) == 1
    world.fake.remove("jobs", "demo", "minilm-0-prep")
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


async def test_deleting_the_model_keeps_the_artifact_for_the_next_one() -> None:
    world = World()
    await world.settle()
    world.fake.remove("encodermodels", "demo", "minilm")
    assert await world.look() is None
    kinds = {kind for kind, _, _ in world.fake.objects}
    assert kinds <= {"persistentvolumeclaims", "events"}
    world.fake.put("encodermodels", model())
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


async def test_a_claim_that_was_made_again_is_filled_again() -> None:
    world = World()
    await world.settle()
    world.fake.remove("persistentvolumeclaims", "demo", "minilm-artifacts")
    for job in world.fake.of("jobs", component="prep"):
        world.fake.remove("jobs", "demo", job["metadata"]["name"])
    revision = world.status["activeRevision"]
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert world.status["activeRevision"] == revision
    assert len(world.fake.of("jobs", component="prep")) == 1


async def test_history_is_bounded() -> None:
    world = World()
    for length in range(64, 76):
        world.change(maxModelLen=length)
        await world.settle()
    revisions = world.fake.of("controllerrevisions", component="revision")
    assert len(revisions) <= 5
    hashes = {found["metadata"]["labels"]["encoders.dev/revision"] for found in revisions}
    verdicts = world.fake.of("controllerrevisions", component="verdict")
    assert {found["metadata"]["labels"]["encoders.dev/revision"] for found in verdicts} <= hashes


def ends(world: World, status: dict[str, Any]) -> None:
    """End the oldest serving pod for good, as a node does that shuts down or needs room; its object stays."""
    pod = copy.deepcopy(world.fake.of("pods", component="serving")[0])
    labels = {**pod["metadata"]["labels"]}
    world.fake.put(
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
    world = World()
    await world.settle()
    ends(world, status)
    await world.look()
    assert world.condition("Progressing") == ("False", "Idle")
    assert world.condition("Degraded") == ("False", "AsExpected")
    assert world.condition("Ready") == ("True", "Ready")
    assert (world.status["phase"], world.status["replicas"]) == ("Serving", 1)


async def test_that_pods_are_evicted_one_after_the_other_is_said_until_one_serves() -> None:
    world = World()
    world.starts = lambda pod: pod["status"].update(conditions=[{"type": "Ready", "status": "False"}])
    for _ in range(4):
        await world.look()
        world.jobs()
        world.deployment()
    assert world.condition("Progressing") == ("True", "Starting")
    ends(world, {"reason": "Evicted"})
    await world.look()
    assert world.condition("Progressing") == ("False", "Evicted")
    assert world.condition("Degraded") == ("False", "AsExpected")


async def test_a_refused_spec_counts_the_pods_that_an_autoscaler_may_count() -> None:
    world = World()
    await world.settle()
    ends(world, {"reason": "Evicted"})
    leaving = copy.deepcopy(world.fake.of("pods", component="serving")[0])
    leaving["metadata"] |= {"name": "minilm-leaving", "uid": "leaving", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.fake.put("pods", leaving)
    world.change(args=["--trust-remote-code"])
    await world.look()
    assert world.condition("Accepted") == ("False", "ArgumentDenied")
    assert (world.status["replicas"], world.status["readyReplicas"]) == (1, 1)


def waits(pod: dict[str, Any]) -> None:
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "engine", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
        ],
    }


async def test_why_the_verified_revision_does_not_come_back_is_said() -> None:
    world = World()
    world.edit(lambda live: live["spec"].update(rollout={"strategy": "Recreate"}))
    await world.settle()
    world.change(maxModelLen=64)
    world.parity = fails
    for _ in range(20):
        await world.look()
        world.jobs()
        if world.condition("UpToDate")[1] == "ParityFailed":
            world.starts = waits
        world.deployment()
    assert world.condition("UpToDate") == ("False", "ParityFailed")
    assert world.condition("Available") == ("False", "ImagePullFailed")
    assert world.said("Available") == "no such image"
    assert world.condition("Progressing") == ("False", "ImagePullFailed")
    # what the person's spec did wrong is still the first thing to know
    assert world.condition("Degraded") == ("True", "ParityFailed")


async def test_what_the_candidates_pods_lack_is_said_before_what_others_lack() -> None:
    world = World(model(replicas=2))
    await world.settle()
    world.starts = waits
    world.change(maxModelLen=64)
    await world.settle()
    broken = copy.deepcopy(world.fake.of("pods", component="serving"))
    first = next(pod for pod in broken if pod["status"]["phase"] == "Running")
    first["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    terminated = {"exitCode": 1, "message": "the artifact was changed"}
    first["status"]["containerStatuses"][0] |= {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": terminated},
    }
    world.fake.put("pods", first)
    await world.look()
    assert world.said("Progressing") == "no such image"
    world.run_pods()
    world.fake.put("pods", first)
    await world.look()
    assert world.condition("Degraded") == ("True", "CrashLoop")
    assert "the artifact was changed" in world.said("Degraded")


async def test_an_unavailable_api_server_is_a_failure_to_try_again() -> None:
    world = World()
    world.fake.fail_next = [(429, {"Retry-After": "7"})]
    with pytest.raises(Unavailable) as caught:
        await world.look()
    assert caught.value.retry_after == 7.0


async def test_a_model_scaled_to_nothing_waits_for_nothing() -> None:
    world = World()
    await world.settle()
    world.change(replicas=0)
    await world.settle()
    assert world.status["phase"] == "Suspended"
    assert world.condition("Degraded") == ("False", "AsExpected")
    world.change(replicas=1)
    await world.settle()
    assert world.status["phase"] == "Serving"


@pytest.mark.parametrize("code", ["Stalled", "RateLimited", "DownloadFailed"])
async def test_a_download_that_is_given_up_is_told(code: str) -> None:
    world = World()
    world.prep = lambda job: (75, {"code": code, "message": "the hub was silent"})
    await world.settle()
    assert world.condition("Degraded") == ("True", code)
    assert [event["reason"] for event in world.fake.of("events")] == [code]
