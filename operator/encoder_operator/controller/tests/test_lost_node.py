"""A prep pod whose node is gone or silent: what the API server knows of it, as the operator reads it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.world import SETTINGS, World

SILENT = "Kubelet stopped posting node status."


def node(ready: str, message: str = "") -> Json:
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready, "message": message}]
    return {"metadata": {"name": "n"}, "status": {"conditions": conditions}}


async def preparing(settings: Settings = SETTINGS) -> World:
    """Return a cluster with a prep pod at work on the node n."""
    world = World()
    world.operator_settings = settings
    world.reconciler = world.operator()
    await world.look()
    job = world.fake.of("jobs")[0]
    pod = {
        "metadata": {
            "name": "prep",
            "namespace": "demo",
            "labels": job["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [{"kind": "Job", "uid": job["metadata"]["uid"]}],
        },
        "spec": {"nodeName": "n"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "prepare", "state": {"running": {}}}],
        },
    }
    world.fake.put("pods", pod)
    world.fake.put("nodes", node("True"))
    return world


async def said(world: World) -> tuple[str, str]:
    # an operator that has just started: the other one remembers for some seconds
    world.reconciler = world.operator()
    await world.look()
    return world.condition("ArtifactReady")[1], world.said("ArtifactReady")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda world: world.fake.remove("nodes", "", "n"), "on node n, which is gone;"),
        (lambda world: world.fake.put("nodes", node("Unknown", SILENT)), f"which is not responding ({SILENT}):"),
        (lambda world: world.fake.put("nodes", node("False", "")), "which is not responding;"),
    ],
    ids=["deleted", "silent", "not ready"],
)
async def test_a_node_that_is_lost_is_said_while_its_pod_looks_alive(
    change: Callable[[World], object], words: str
) -> None:
    world = await preparing()
    assert await said(world) == ("Preparing", "Pod prep is running")
    change(world)
    jobs = [job["metadata"]["uid"] for job in world.fake.of("jobs")]
    reason, message = await said(world)
    assert reason == "NodeLost"
    assert words in message
    # the Job's controller goes on by itself: nothing is made, nothing is deleted
    assert [job["metadata"]["uid"] for job in world.fake.of("jobs")] == jobs
    world.fake.put("nodes", node("True"))
    assert (await said(world))[0] == "Preparing"


async def test_a_node_is_asked_about_once_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    world, clock = await preparing(), [1000.0]
    monkeypatch.setattr("encoder_operator.state.observer.time.monotonic", lambda: clock[0])
    await said(world)
    world.fake.remove("nodes", "", "n")
    await world.look()
    assert world.condition("ArtifactReady")[1] == "Preparing"
    clock[0] += 10.0
    await world.look()
    assert world.condition("ArtifactReady")[1] == "NodeLost"


async def test_where_nodes_can_not_be_read_the_job_does_without() -> None:
    world = await preparing()
    world.fake.forbidden = {"GET nodes"}
    assert await said(world) == ("Preparing", "Pod prep is running")


async def test_in_one_namespace_a_silent_node_is_told_by_its_pod() -> None:
    world = await preparing(SETTINGS.model_copy(update={"namespaces": ("demo",)}))
    world.fake.remove("nodes", "", "n")
    assert (await said(world))[0] == "Preparing"
    # what the controller manager does to the pods of a node that is silent
    pod = copy.deepcopy(world.fake.of("pods")[0])
    pod["status"]["conditions"][1]["status"] = "False"
    world.fake.put("pods", pod)
    assert await said(world) == (
        "NodeLost",
        "Pod prep is on node n, which is not responding; a replacement pod starts when Kubernetes has evicted this one",
    )
