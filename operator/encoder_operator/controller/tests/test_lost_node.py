"""A prep pod whose node is gone or silent: what the API server knows of it, as the operator reads it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from encoder_operator.manager.settings import Settings
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS, Harness, controller

SILENT = "Kubelet stopped posting node status."


def node(ready: str, message: str = "") -> Json:
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready, "message": message}]
    return {"metadata": {"name": "n"}, "status": {"conditions": conditions}}


async def preparing(settings: Settings = SETTINGS) -> Harness:
    """Return a cluster with a prep pod that runs on node n."""
    harness = Harness()
    harness.operator_settings = settings
    harness.reconciler = harness.operator()
    await harness.reconcile()
    job = harness.fake.of("jobs")[0]
    pod = {
        "metadata": {
            "name": "prep",
            "namespace": "demo",
            "labels": job["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [controller("Job", job)],
        },
        "spec": {"nodeName": "n"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "prepare", "state": {"running": {}}}],
        },
    }
    harness.fake.put("pods", pod)
    harness.fake.put("nodes", node("True"))
    return harness


async def said(harness: Harness) -> tuple[str, str]:
    # an operator that has just started: the other one remembers for some seconds
    harness.reconciler = harness.operator()
    await harness.reconcile()
    return harness.condition("ArtifactReady")[1], harness.message("ArtifactReady")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda harness: harness.fake.remove("nodes", "", "n"), "on node n, which is gone;"),
        (lambda harness: harness.fake.put("nodes", node("Unknown", SILENT)), f"which is not responding ({SILENT});"),
        (lambda harness: harness.fake.put("nodes", node("False", "")), "which is not responding;"),
    ],
    ids=["deleted", "silent", "not ready"],
)
async def test_a_lost_node_is_reported_while_its_pod_seems_alive(
    change: Callable[[Harness], object], words: str
) -> None:
    harness = await preparing()
    assert await said(harness) == ("Preparing", "Pod prep is running")
    change(harness)
    jobs = [job["metadata"]["uid"] for job in harness.fake.of("jobs")]
    reason, message = await said(harness)
    assert reason == "NodeLost"
    assert words in message
    # the Job's controller goes on by itself: nothing is made, nothing is deleted
    assert [job["metadata"]["uid"] for job in harness.fake.of("jobs")] == jobs
    harness.fake.put("nodes", node("True"))
    assert (await said(harness))[0] == "Preparing"


async def test_a_node_is_read_once_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, clock = await preparing(), [1000.0]
    monkeypatch.setattr("encoder_operator.state.observer.time.monotonic", lambda: clock[0])
    await said(harness)
    harness.fake.remove("nodes", "", "n")
    await harness.reconcile()
    assert harness.condition("ArtifactReady")[1] == "Preparing"
    clock[0] += 10.0
    await harness.reconcile()
    assert harness.condition("ArtifactReady")[1] == "NodeLost"


async def test_where_nodes_can_not_be_read_the_job_does_without() -> None:
    harness = await preparing()
    harness.fake.forbidden = {"GET nodes"}
    assert await said(harness) == ("Preparing", "Pod prep is running")


async def test_in_namespaced_mode_a_silent_node_is_detected_by_its_pod() -> None:
    harness = await preparing(SETTINGS.model_copy(update={"namespaces": ("demo",)}))
    harness.fake.remove("nodes", "", "n")
    assert (await said(harness))[0] == "Preparing"
    # what the controller manager does to the pods of a node that is silent
    pod = copy.deepcopy(harness.fake.of("pods")[0])
    pod["status"]["conditions"][1]["status"] = "False"
    harness.fake.put("pods", pod)
    assert await said(harness) == (
        "NodeLost",
        "Pod prep is on node n, which is not responding; a replacement pod starts when Kubernetes has evicted this one",
    )
