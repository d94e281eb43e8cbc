"""What an EncoderModel may serve, and what it may not: verdicts, gates and rollouts, on the real client and a fake API server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta

import pytest

from encoder_operator.tests.cluster_fake import Json
from encoder_operator.tests.world import World, annotate, controller, fails, model, passes, report


@pytest.mark.complaint(17)
async def test_a_first_revision_that_fails_never_serves_and_leaves_no_pod() -> None:
    world = World()
    world.parity = fails
    await world.settle()
    assert world.condition("Verified") == ("False", "ParityFailed")
    assert world.condition("Ready") == ("False", "ParityFailed")
    assert "0.8123" in next(e["message"] for e in world.status["conditions"] if e["type"] == "Verified")
    assert world.status["phase"] == "Failed"
    assert world.status["candidateParity"]["result"] == "Failed"
    assert world.fake.of("pods", component="serving") == []
    assert [event["reason"] for event in world.fake.of("events")].count("ParityFailed") == 1


async def test_a_failed_update_goes_back_to_the_verified_template_byte_for_byte() -> None:
    world = World(model(replicas=2))
    await world.settle()
    first = world.status["activeRevision"]
    template = copy.deepcopy(world.fake.of("deployments")[0]["spec"]["template"])
    world.change(maxModelLen=64)
    world.parity = fails
    for _ in range(30):
        await world.look()
        world.jobs()
        world.deployment()
        assert set(world.endpoints()) == {first}
    assert world.fake.of("deployments")[0]["spec"]["template"] == template
    assert world.condition("Available") == ("True", "Serving")
    assert world.condition("UpToDate") == ("False", "ParityFailed")
    assert world.condition("Verified") == ("True", "ParityPassed")
    assert world.condition("Degraded") == ("True", "ParityFailed")
    assert world.status["phase"] == "Degraded"
    assert world.status["activeRevision"] == first
    assert world.status["candidateRevision"] != first


async def test_many_failed_edits_push_out_neither_what_serves_nor_its_proof() -> None:
    world = World()
    await world.settle()
    first, pods = world.status["activeRevision"], world.serving()
    world.parity = fails
    for length in range(64, 76):
        world.change(maxModelLen=length)
        await world.settle()
        assert world.endpoints() == [first]
        kept = records(world, "revision")
        assert first in kept
        assert first in records(world, "verdict")
        assert len(kept) <= 5
    world.reconciler = world.operator()
    world.edit(lambda live: live["spec"]["serving"].pop("maxModelLen"))
    compared = len(world.fake.of("jobs", component="parity"))
    await world.look()
    assert world.condition("Ready") == ("True", "Ready")
    await world.settle()
    assert (world.status["activeRevision"], world.serving()) == (first, pods)
    assert len(world.fake.of("jobs", component="parity")) == compared


async def test_many_failed_edits_push_out_no_earlier_revision_that_passed() -> None:
    world = World()
    passed = []
    for length in (32, 33, 34):
        world.change(maxModelLen=length)
        await world.settle()
        passed.append(world.status["activeRevision"])
    world.parity = fails
    for length in range(64, 76):
        world.change(maxModelLen=length)
        await world.settle()
        assert set(passed) <= records(world, "revision") & records(world, "verdict")
    compared = len(world.fake.of("jobs", component="parity"))
    world.change(maxModelLen=32)
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert world.status["activeRevision"] == passed[0]
    assert len(world.fake.of("jobs", component="parity")) == compared


def records(world: World, component: str) -> set[str]:
    """Return the revisions that records of a kind speak of."""
    found = world.fake.of("controllerrevisions", component=component)
    return {record["metadata"]["labels"]["encoders.dev/revision"] for record in found}


async def test_going_back_to_an_earlier_spec_needs_no_new_proof() -> None:
    world = World()
    await world.settle()
    first = world.status["activeRevision"]
    world.change(maxModelLen=64)
    await world.settle()
    world.edit(lambda live: live["spec"]["serving"].pop("maxModelLen"))
    world.parity = fails
    await world.settle()
    assert world.status["activeRevision"] == first
    assert world.condition("Ready") == ("True", "Ready")
    assert len(world.fake.of("jobs", component="parity")) == 2


async def test_scaling_up_and_down_reuses_the_verdict() -> None:
    world = World()
    await world.settle()
    world.change(replicas=3)
    await world.settle()
    assert world.status["readyReplicas"] == 3
    world.change(replicas=1)
    await world.settle()
    assert world.status["readyReplicas"] == 1
    assert len(world.fake.of("jobs", component="parity")) == 1


async def test_an_unverified_first_revision_runs_one_pod() -> None:
    world = World(model(replicas=3))
    world.parity = lambda job: {"result": "Inconclusive", "message": "the pod did not answer"}
    await world.settle()
    assert world.fake.of("deployments")[0]["spec"]["replicas"] == 1
    assert world.condition("Verified") == ("False", "Inconclusive")
    assert world.condition("Degraded") == ("False", "AsExpected")


async def test_an_inconclusive_comparison_is_tried_again_later_and_never_promotes() -> None:
    world = World()
    world.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    await world.settle()
    assert world.endpoints() == []
    for job in world.fake.of("jobs", component="parity"):
        job["status"]["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    world.parity = passes
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


async def test_comparisons_that_prove_nothing_are_tried_ever_more_rarely() -> None:
    world = World()
    world.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    for tries, delay in enumerate((5, 10, 20, 40, 80, 160, 300, 300), start=1):
        await world.settle()
        assert len(world.fake.of("jobs", component="parity")) == tries
        left = await world.look() or 0
        assert left == pytest.approx(delay, abs=4)
        world.fake.ahead += timedelta(seconds=left - 2)
        await world.settle()
        assert len(world.fake.of("jobs", component="parity")) == tries
        world.fake.ahead += timedelta(seconds=4)
    assert world.endpoints() == []
    assert world.condition("Degraded") == ("False", "AsExpected")
    assert world.fake.of("controllerrevisions", component="verdict") == []


@pytest.mark.complaint(15)
@pytest.mark.parametrize(
    "change",
    [
        {"artifact": "sha256:" + "c" * 64},
        {"reference": "sha256:" + "c" * 64},
        {"binding": None},
        {"result": "Great"},
        {"result": None},
    ],
)
async def test_a_verdict_that_speaks_of_something_else_is_not_accepted(change: Json) -> None:
    await refused(lambda report: report | change)


@pytest.mark.complaint(15)
@pytest.mark.parametrize(
    "change",
    [
        {"uid": "another"},
        {"containerIDs": {"engine": "containerd://another"}},
        {"imageID": "sha256:another"},
        {"product": "NVIDIA-L4"},
        {"revision": "0123456789"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_every_part_of_what_a_verdict_is_bound_to_must_match(change: Json) -> None:
    await refused(lambda report: report | {"binding": report["binding"] | change})


async def refused(change: Callable[[Json], Json]) -> None:
    """Let every comparison pass, on something else than what was asked about."""
    world = World()
    world.parity = lambda job: change(passes(job))
    await world.settle()
    assert world.endpoints() == []
    assert world.fake.of("controllerrevisions", component="verdict") == []
    assert world.condition("Verified") == ("False", "Inconclusive")


@pytest.mark.complaint(15)
async def test_a_pod_that_restarted_during_the_comparison_proves_nothing() -> None:
    world = World()

    def restarted(job: Json) -> Json:
        pod = world.fake.of("pods", component="serving")[0]
        pod["status"]["containerStatuses"][0]["containerID"] = "containerd://another"
        return passes(job)

    world.parity = restarted
    await world.look()
    world.jobs()
    await world.look()
    world.deployment()
    await world.look()
    world.jobs()
    await world.look()
    assert world.endpoints() == []
    assert world.fake.of("controllerrevisions", component="verdict") == []


async def test_a_retry_annotation_gives_a_failed_revision_another_chance() -> None:
    world = World()
    world.parity = fails
    await world.settle()
    await world.settle()
    assert len(world.fake.of("jobs", component="parity")) == 1
    world.parity = passes
    world.edit(annotate(retry="1"))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert [v["data"]["result"] for v in world.fake.of("controllerrevisions", component="verdict")] == ["Passed"]


async def test_disabled_parity_serves_and_says_so() -> None:
    manifest = model()
    manifest["spec"]["parity"] = {"mode": "Disabled"}
    world = World(manifest)
    await world.settle()
    assert world.condition("Verified") == ("False", "Disabled")
    assert world.condition("Ready") == ("True", "Ready")
    assert world.fake.of("jobs", component="parity") == []


async def test_enforcing_later_closes_the_gate_until_there_is_proof() -> None:
    manifest = model()
    manifest["spec"]["parity"] = {"mode": "Disabled"}
    world = World(manifest)
    await world.settle()
    world.parity = fails
    world.edit(lambda live: live["spec"].update(parity={"mode": "Enforce"}))
    await world.settle()
    assert world.endpoints() == []
    assert world.condition("Verified") == ("False", "ParityFailed")


async def test_warn_serves_a_failed_revision_and_says_so() -> None:
    manifest = model()
    manifest["spec"]["parity"] = {"mode": "Warn"}
    world = World(manifest)
    world.parity = fails
    await world.settle()
    assert len(world.endpoints()) == 1
    assert world.condition("Verified") == ("False", "ParityFailed")
    assert world.condition("Ready") == ("True", "Ready")


async def test_tighter_thresholds_are_checked_while_the_model_serves_on() -> None:
    world = World()
    await world.settle()
    world.edit(lambda live: live["spec"].update(parity={"thresholds": {"cosine": "0.99999999"}}))
    await world.look()
    assert len(world.fake.of("jobs", component="parity")) == 2
    assert len(world.endpoints()) == 1
    world.parity = fails
    await world.settle()
    assert world.endpoints() == []
    assert world.condition("Verified") == ("False", "ParityFailed")


async def test_a_gate_opened_by_hand_is_closed_again() -> None:
    world = World()
    world.parity = lambda job: {"result": "Inconclusive", "message": "busy"}
    await world.settle()
    pod = copy.deepcopy(world.fake.of("pods", component="serving")[0])
    pod["status"]["conditions"].append({"type": "encoders.dev/parity", "status": "True", "reason": "Me"})
    world.fake.put("pods", pod)
    await world.look()
    conditions = {e["type"]: e["status"] for e in world.fake.of("pods", component="serving")[0]["status"]["conditions"]}
    assert conditions["encoders.dev/parity"] == "False"


async def test_a_new_spec_during_a_comparison_replaces_the_candidate() -> None:
    world = World()
    await world.settle()
    world.change(maxModelLen=64)
    await world.look()
    world.deployment()
    world.deployment()
    await world.look()
    unfinished = [job for job in world.fake.of("jobs", component="parity") if "status" not in job]
    assert len(unfinished) == 1
    world.change(maxModelLen=65)
    await world.look()
    assert [job for job in world.fake.of("jobs", component="parity") if "status" not in job] == []
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


async def test_each_gpu_product_needs_its_own_proof() -> None:
    world = World(model(accelerator="nvidia"))
    for node, product in (("node", "NVIDIA-H200"), ("other", "NVIDIA-L4")):
        world.fake.put("nodes", {"metadata": {"name": node, "labels": {"nvidia.com/gpu.product": product}}})
    await world.settle()
    assert world.status["parity"]["accelerator"] == "NVIDIA-H200"
    world.change(replicas=2)
    await world.look()
    pod = copy.deepcopy(world.start_pod(world.fake.of("deployments")[0]["spec"]["template"]))
    pod["spec"]["nodeName"] = "other"
    world.fake.put("pods", pod)
    world.parity = lambda job: report(job, "Failed", "0.5")
    await world.settle()
    assert len(world.endpoints()) == 1
    assert world.condition("Available") == ("True", "Serving")
    assert world.condition("Degraded") == ("True", "ParityFailed")


def lose(world: World) -> None:
    """Take the serving pods away as a drain does."""
    for pod in world.fake.of("pods", component="serving"):
        world.fake.remove("pods", "demo", pod["metadata"]["name"])


@pytest.mark.parametrize("parity", [{"mode": "Disabled"}, {"mode": "Warn"}], ids=lambda parity: parity["mode"])
@pytest.mark.parametrize("change", [{"paused": True}, {"plugin": "nobody_has_this"}], ids=["paused", "not accepted"])
async def test_what_may_serve_without_a_pass_serves_on_while_the_model_is_left_alone(
    parity: Json, change: Json
) -> None:
    manifest = model()
    manifest["spec"]["parity"] = parity
    world = World(manifest)
    world.parity = fails
    await world.settle()
    assert len(world.endpoints()) == 1
    world.edit(lambda live: live["spec"].update(change))
    await world.settle()
    lose(world)
    await world.settle()
    assert len(world.endpoints()) == 1
    assert world.condition("Available") == ("True", "Serving")


@pytest.mark.parametrize("change", [{"paused": True}, {"image": 7}], ids=["paused", "not accepted"])
async def test_what_failed_under_todays_thresholds_is_not_let_in_while_the_model_is_left_alone(change: Json) -> None:
    world = World()
    await world.settle()
    world.parity = fails
    world.edit(lambda live: live["spec"].update(parity={"thresholds": {"cosine": "0.99999999"}}))
    await world.settle()
    assert world.condition("Verified") == ("False", "ParityFailed")
    template = world.fake.of("deployments")[0]["spec"]["template"]
    world.edit(lambda live: live["spec"].update(change))
    world.start_pod(template)
    for _ in range(2):
        await world.look()
        for pod in world.fake.of("pods", component="serving"):
            world._kubelet(pod)
    assert world.endpoints() == []


@pytest.mark.fault(
    "the parity pod's image can't be pulled, or no node takes it",
    "`ParityRunning` with the kubelet's or the scheduler's words",
    "the comparison goes on when it can",
)
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {
                "containerStatuses": [
                    {"name": "parity", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}
                ]
            },
            "no such tag",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                ]
            },
            "0/1 nodes",
        ),
    ],
)
async def test_a_comparison_that_can_not_start_says_why(status: Json, said: str) -> None:
    world = World()
    await world.look()
    world.jobs()
    await world.look()
    world.deployment()
    await world.look()
    (job,) = world.fake.of("jobs", component="parity")
    labels = {**job["spec"]["template"]["metadata"]["labels"]}
    owner = [controller("Job", job)]
    meta = {"name": "asks", "namespace": "demo", "labels": labels, "ownerReferences": owner}
    world.fake.put("pods", {"metadata": meta, "status": {"phase": "Pending", **status}})
    await world.look()
    for name in ("Verified", "Progressing"):
        assert world.condition(name)[1] == "ParityRunning"
        assert said in world.said(name)
    assert len(world.fake.of("jobs", component="parity")) == 1
    world.fake.remove("pods", "demo", "asks")
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
