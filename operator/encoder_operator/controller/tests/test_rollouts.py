"""How one revision takes the place of another, and what keeps it from that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from encoder_operator.client.client import Client
from encoder_operator.naming import NamespacedName
from encoder_operator.planner import planner
from encoder_operator.state.desired import parse_model
from encoder_operator.state.observed import ObservedState, format_time
from encoder_operator.state.observer import Observer
from encoder_operator.state.snapshot import SnapshotReader
from encoder_operator.tests.cluster_fake import ClusterFake, Json
from encoder_operator.tests.world import SETTINGS, World, annotate, controller, fails, model


def spec(**changes: Any) -> Callable[[Json], None]:
    return lambda live: live["spec"].update(changes)


def hang(world: World, **waiting: str) -> None:
    """Let pods that start from now on get a node and never run."""
    state = {"waiting": waiting} if waiting else {}

    def started(pod: Json) -> None:
        pod["status"]["conditions"][0]["status"] = "False"
        pod["status"]["containerStatuses"][0]["state"] = state

    world.starts = started


def wait_until_overdue(world: World) -> None:
    """Let the candidate's clock say that it has run for a day."""
    for record in world.fake.of("controllerrevisions", component="revision"):
        annotations = record["metadata"]["annotations"]
        if "encoders.dev/stalled" in annotations:
            annotations["encoders.dev/stalled"] = '{"since":"2026-01-01T00:00:00Z"}'


async def give_up(world: World) -> None:
    """Edit the model, and let the candidate never start, until it is given up."""
    hang(world)
    world.change(maxModelLen=64)
    await world.settle()
    wait_until_overdue(world)
    await world.settle()
    world.starts = lambda pod: None


def clocks(world: World) -> list[str]:
    records = world.fake.of("controllerrevisions", component="revision")
    found = [record["metadata"]["annotations"].get("encoders.dev/stalled", "") for record in records]
    return [clock for clock in found if clock]


async def test_a_candidate_that_does_not_start_is_given_up_and_the_verified_one_comes_back() -> None:
    world = World()
    await world.settle()
    first = world.status["activeRevision"]
    template = copy.deepcopy(world.fake.of("deployments")[0]["spec"]["template"])
    hang(world, reason="CrashLoopBackOff", message="back-off")
    world.change(maxModelLen=64)
    await world.settle()
    assert len(clocks(world)) == 1
    assert world.endpoints() == [first]
    assert world.condition("UpToDate") == ("False", "RolloutInProgress")
    assert await world.look() == pytest.approx(1800, abs=60)
    wait_until_overdue(world)
    await world.settle()
    assert world.fake.of("deployments")[0]["spec"]["template"] == template
    assert world.endpoints() == [first]
    assert len(world.fake.of("pods", component="serving")) == 1
    for name in ("UpToDate", "Progressing"):
        assert world.condition(name) == ("False", "ProgressDeadlineExceeded")
    assert world.condition("Degraded") == ("True", "ProgressDeadlineExceeded")
    assert world.condition("Available") == ("True", "Serving")
    assert "has not started within 1800 s: " in world.said("UpToDate")


async def test_what_was_given_up_stays_so_until_a_retry_or_more_patience() -> None:
    world = World()
    await world.settle()
    await give_up(world)
    world.reconciler = world.operator()
    await world.settle()
    assert world.condition("UpToDate") == ("False", "ProgressDeadlineExceeded")
    again: tuple[Callable[[Json], None], ...] = (annotate(retry="1"), spec(rollout={"progressDeadlineSeconds": 3600}))
    for change in again:
        other = copy.deepcopy(world.fake.objects)
        world.edit(change)
        await world.settle()
        assert world.condition("Ready") == ("True", "Ready")
        assert clocks(world) == []
        world.fake.objects = other


async def test_without_anything_to_go_back_to_a_late_candidate_is_left_to_come_round() -> None:
    world = World()
    hang(world, reason="ErrImagePull", message="no such image")
    await world.settle()
    wait_until_overdue(world)
    await world.settle()
    assert len(world.fake.of("pods", component="serving")) == 1
    assert world.condition("Degraded") == ("True", "ProgressDeadlineExceeded")
    assert "no such image" in world.said("Degraded")
    world.run_pods()
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert clocks(world) == []


async def test_the_clock_does_not_run_for_a_pod_without_a_node_and_says_why_it_waits() -> None:
    world = World(model(accelerator="nvidia"))
    world.fake.put("nodes", {"metadata": {"name": "node", "labels": {"nvidia.com/gpu.product": "NVIDIA-H200"}}})
    await world.settle()
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    world.starts = lambda pod: unscheduled(pod, said)
    world.change(maxModelLen=64)
    await world.settle()
    assert clocks(world) == []
    assert world.condition("Progressing") == ("False", "InsufficientGPU")
    assert world.said("Progressing") == said
    assert world.condition("Available") == ("True", "Serving")
    assert await world.look() is None
    world.run_pods()
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")


def unscheduled(pod: Json, said: str) -> None:
    del pod["spec"]["nodeName"]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod["status"] = {"phase": "Pending", "conditions": [condition, {"type": "Ready", "status": "False"}]}


async def test_the_clock_does_not_run_while_a_comparison_can_not_be_made() -> None:
    world = World()
    await world.settle()
    first = world.status["activeRevision"]
    world.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    world.change(maxModelLen=64)
    await world.settle()
    assert clocks(world) == []
    assert world.condition("UpToDate") == ("False", "Inconclusive")
    assert world.endpoints() == [first]


async def test_a_clock_that_ran_is_set_back_when_the_pod_starts() -> None:
    world = World()
    await world.settle()
    hang(world)
    world.change(maxModelLen=64)
    await world.settle()
    assert len(clocks(world)) == 1
    world.run_pods()
    await world.settle()
    assert clocks(world) == []
    assert world.condition("Ready") == ("True", "Ready")


async def test_a_pod_that_has_just_begun_is_not_worth_a_write() -> None:
    world = World()
    await world.settle()
    just_now = format_time(datetime.now(UTC))

    def started(pod: Json) -> None:
        pod["metadata"]["creationTimestamp"] = just_now
        pod["status"]["conditions"][0]["status"] = "False"

    world.starts = started
    world.change(maxModelLen=64)
    await world.settle()
    assert clocks(world) == []
    assert await world.look() == pytest.approx(30, abs=29)


@pytest.mark.complaint(13)
async def test_twenty_edits_end_in_one_rollout_of_the_last() -> None:
    world = World(model(replicas=2))
    await world.settle()
    first = world.status["activeRevision"]
    for length in range(20):
        world.change(maxModelLen=64 + length)
        await world.look()
        world.deployment()
        assert world.endpoints().count(first) == 2
    await world.settle()
    args = world.fake.of("deployments")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--max-model-len") + 1] == "83"
    assert set(world.endpoints()) == {world.status["activeRevision"]}
    # what was skipped was never compared, and is not kept either
    assert len(world.fake.of("controllerrevisions", component="verdict")) == 2
    assert len(world.fake.of("controllerrevisions", component="revision")) <= 5


@pytest.mark.complaint(12)
async def test_going_back_in_the_middle_touches_nothing_that_serves() -> None:
    world = World(model(replicas=2))
    await world.settle()
    pods = world.serving()
    world.change(maxModelLen=64)
    for _ in range(3):
        await world.look()
        world.deployment()
    assert len(world.serving()) == 3
    world.edit(lambda live: live["spec"]["serving"].pop("maxModelLen"))
    await world.look()
    assert world.condition("Ready") == ("True", "Ready")
    await world.settle()
    assert world.serving() == pods


async def test_recreate_takes_the_old_pods_first_and_brings_them_back_when_the_new_ones_fail() -> None:
    world = World()
    world.edit(spec(rollout={"strategy": "Recreate"}))
    await world.settle()
    first = world.status["activeRevision"]
    world.change(maxModelLen=64)
    world.parity = fails
    most = 0
    for _ in range(12):
        await world.look()
        world.jobs()
        world.deployment()
        most = max(most, len(world.fake.of("pods", component="serving")))
    assert most == 1
    assert world.endpoints() == [first]
    assert world.condition("UpToDate") == ("False", "ParityFailed")
    assert world.condition("Available") == ("True", "Serving")
    assert len(world.fake.of("jobs", component="parity")) == 2


@pytest.mark.complaint(10)
async def test_pods_of_a_former_revision_never_count_for_the_new_one() -> None:
    world = World(model(replicas=2))
    await world.settle()
    world.change(maxModelLen=64)
    # until the new revision is proved the old pods answer, and the model is not ready for what the spec says
    for _ in range(3):
        await world.look()
        world.deployment()
        assert world.condition("UpToDate")[0] == "False"
        assert world.condition("Ready")[0] == "False"
        assert world.condition("Available")[0] == "True"


async def test_a_paused_model_is_left_alone_and_says_so() -> None:
    world = World()
    await world.settle()
    first = world.status["activeRevision"]
    world.edit(spec(paused=True))
    world.change(maxModelLen=64, replicas=3)
    world.fake.writes.clear()
    await world.settle()
    assert {write for write in world.fake.writes if "events" not in write} == {"PATCH encodermodels/status minilm"}
    assert world.condition("Progressing") == ("False", "Paused")
    assert world.condition("UpToDate") == ("False", "Paused")
    assert world.condition("Available") == ("True", "Serving")
    pod = world.fake.of("pods", component="serving")[0]
    world.fake.remove("pods", "demo", pod["metadata"]["name"])
    await world.settle()
    assert world.endpoints() == [first]
    world.edit(spec(paused=False))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    assert world.status["readyReplicas"] == 3
    assert world.status["activeRevision"] != first


async def test_a_model_that_is_born_paused_starts_nothing() -> None:
    manifest = model()
    manifest["spec"]["paused"] = True
    world = World(manifest)
    await world.settle()
    assert [write for write in world.fake.writes if "events" not in write] == ["PATCH encodermodels/status minilm"]
    assert world.condition("ArtifactReady") == ("False", "Paused")
    assert world.condition("Ready") == ("False", "Paused")


async def test_more_preparations_than_allowed_wait_in_line() -> None:
    world = World()
    world.reconciler = world.operator(SETTINGS.model_copy(update={"max_preps": 1}))
    for name in ("one", "two"):
        manifest = model()
        manifest["metadata"]["name"] = name
        world.fake.put("encodermodels", manifest)
        await world.reconciler.reconcile("demo", name)
    assert [job["metadata"]["labels"]["encoders.dev/model"] for job in world.fake.of("jobs")] == ["one"]
    two = world.fake.objects["encodermodels", "demo", "two"]["status"]
    ready = next(entry for entry in two["conditions"] if entry["type"] == "ArtifactReady")
    assert (ready["status"], ready["reason"]) == ("False", "Queued")
    assert two["phase"] == "Pending"
    world.jobs()
    for name in ("one", "two"):
        await world.reconciler.reconcile("demo", name)
    assert sorted(
        job["metadata"]["labels"]["encoders.dev/model"] for job in world.fake.of("jobs", component="prep")
    ) == [
        "one",
        "two",
    ]


@pytest.mark.parametrize(
    ("kind", "asks", "drops"),
    [
        ("networkpolicies", spec(network={"networkPolicy": {"from": []}}), spec(network={})),
        (
            "poddisruptionbudgets",
            lambda live: live["spec"]["serving"].update(replicas=2),
            lambda live: live["spec"]["serving"].update(replicas=1),
        ),
        ("httproutes", spec(network={"httpRoute": {"parentRefs": [{"name": "gate"}]}}), spec(network={})),
    ],
)
async def test_a_further_child_is_there_while_it_is_asked_for(kind: str, asks: Any, drops: Any) -> None:
    world = World()
    world.fake.gateway_api = True
    await world.settle()
    assert world.fake.of(kind) == []
    world.edit(asks)
    await world.settle()
    assert [found["metadata"]["name"] for found in world.fake.of(kind)] == ["minilm"]
    assert world.fake.of(kind)[0]["metadata"]["ownerReferences"][0]["uid"] == world.live["metadata"]["uid"]
    assert world.condition("Ready") == ("True", "Ready")
    world.edit(drops)
    await world.settle()
    assert world.fake.of(kind) == []


async def test_a_route_without_a_gateway_api_is_said_and_the_rest_works() -> None:
    world = World()
    world.edit(spec(network={"httpRoute": {"parentRefs": [{"name": "gate"}]}}))
    await world.settle()
    assert world.condition("Degraded") == ("True", "GatewayApiMissing")
    assert world.condition("Ready") == ("True", "Ready")
    assert await world.look() == 60.0


@pytest.mark.fault(
    "the Gateway API is taken out of the cluster",
    "`GatewayApiMissing` on models with a route; the others notice nothing",
    "every look goes on without it, the first one too",
)
async def test_a_gateway_api_that_goes_away_holds_nothing_up() -> None:
    world = World()
    world.fake.gateway_api = True
    world.edit(spec(network={"httpRoute": {"parentRefs": [{"name": "gate"}]}}))
    await world.settle()
    assert world.condition("Degraded") == ("False", "AsExpected")
    world.fake.gateway_api = False
    world.fake.remove("httproutes", "demo", "minilm")
    await world.look()
    assert world.condition("Degraded") == ("True", "GatewayApiMissing")
    assert world.condition("Ready") == ("True", "Ready")
    world.edit(spec(serving={**world.live["spec"]["serving"], "maxModelLen": 64}))
    await world.settle()
    assert world.condition("UpToDate") == ("True", "Current")


async def test_somebody_elses_network_policy_is_neither_taken_over_nor_deleted() -> None:
    world = World()
    foreign = {
        "kind": "NetworkPolicy",
        "metadata": {"name": "minilm", "namespace": "demo"},
        "spec": {"podSelector": {}},
    }
    world.fake.put("networkpolicies", copy.deepcopy(foreign))
    await world.settle()
    assert world.condition("Ready") == ("True", "Ready")
    world.edit(spec(network={"networkPolicy": {"from": []}}))
    await world.settle()
    assert world.condition("Accepted") == ("False", "NameConflict")
    assert world.condition("Available") == ("True", "Serving")
    assert world.fake.of("networkpolicies")[0]["spec"] == {"podSelector": {}}


async def test_an_edited_policy_decides_what_becomes_of_the_claim() -> None:
    world = World()
    await world.settle()
    claim = world.fake.of("persistentvolumeclaims")[0]
    assert "ownerReferences" not in claim["metadata"]
    world.edit(lambda live: live["spec"]["storage"].update(policy="Delete"))
    await world.settle()
    assert world.fake.of("persistentvolumeclaims")[0]["metadata"]["ownerReferences"][0]["kind"] == "EncoderModel"
    world.edit(lambda live: live["spec"]["storage"].update(policy="Retain"))
    await world.settle()
    assert not world.fake.of("persistentvolumeclaims")[0]["metadata"].get("ownerReferences")
    world.edit(lambda live: live["spec"]["storage"].update(policy="Delete"))
    await world.settle()
    world.fake.remove("encodermodels", "demo", "minilm")
    assert {kind for kind, _, _ in world.fake.objects} <= {"events"}


async def test_progress_is_shown_and_written_at_most_once_in_ten_seconds() -> None:
    world = World()
    await world.look()
    job = world.fake.of("jobs")[0]
    world.fake.put("nodes", {"metadata": {"name": "node"}})
    world.fake.put(
        "pods",
        {
            "metadata": {
                "name": "prep",
                "namespace": "demo",
                "labels": job["spec"]["template"]["metadata"]["labels"],
                "ownerReferences": [controller("Job", job)],
            },
            "spec": {"nodeName": "node"},
            "status": {"phase": "Running", "containerStatuses": [{"name": "prepare", "state": {"running": {}}}]},
        },
    )
    live = parse_model(world.live, SETTINGS)
    found = await read_state(world)

    def shown(second: int, bytes_: int, before: Json) -> Json:
        line = {
            "phase": "download",
            "bytes": bytes_,
            "total": 100,
            "bytesPerSecond": 7,
            "at": f"2026-01-01T00:00:{second:02}Z",
        }
        pods = tuple(replace(pod, progress=line) for pod in found.prep_jobs[0].pods)
        now = replace(found, prep_jobs=(replace(found.prep_jobs[0], pods=pods),))
        plan = planner.plan(replace(live, status=before), now, SETTINGS)
        assert plan.requeue_after == 10.0
        return dict(plan.status)

    first = shown(1, 10, {})
    assert first["artifact"]["progress"] == {
        "phase": "download",
        "bytes": 10,
        "total": 100,
        "bytesPerSecond": 7,
        "at": "2026-01-01T00:00:01Z",
    }
    assert shown(9, 40, first) == first
    later = shown(11, 60, first)
    assert later["artifact"]["progress"]["bytes"] == 60


async def read_state(world: World) -> ObservedState:
    """Return the facts as the operator reads them."""
    cluster = Client(config=ClusterFake.config(), transport=world.fake)
    view = await SnapshotReader(cluster).read(NamespacedName("demo", "minilm"))
    assert view is not None
    return await Observer(cluster, SETTINGS).observe(view)
