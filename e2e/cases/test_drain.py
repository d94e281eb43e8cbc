"""Drain the node that a model's volume keeps its pods on: the drain ends, and the model serves again when the node is back."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import manifests
from encoder_platform.kube import Kube, condition
from encoder_platform.scene import ENGINE_SECONDS
from encoder_platform.space import Space

DRAIN_SECONDS = 120


@contextmanager
def drained(kube: Kube, node: str, selector: str) -> Iterator[None]:
    """Drain the selected pods from a node, and let pods be scheduled there again after the block."""
    options = ("--pod-selector", selector, "--delete-emptydir-data", f"--timeout={DRAIN_SECONDS}s")
    try:
        kube.run("drain", node, *options, seconds=DRAIN_SECONDS + 30)
        yield
    finally:
        kube.run("uncordon", node)


@pytest.fixture
def served(space: Space) -> Space:
    """A model with two pods on a volume that one node can mount; those of the default class allow several."""
    name, path = f"pinned-{space.name}", f"/run/pinned-{space.name}"
    space.platform.cluster.run(["mkdir", "-p", "-m", "1777", path])
    node = space.kube.all(("v1", "Node"), "")[0]["metadata"]["name"]
    space.kube.apply(manifests.local_volume(name, node, path, size="2Gi"))
    space.kube.apply(manifests.claim("pinned", space.name, storage_class=name))
    space.apply_model(storage={"claimName": "pinned"}, serving={"replicas": 2}, rollout={"minReadySeconds": 0})
    space.wait_ready()
    return space


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.fault(
    "the only node that can mount the model's volume is drained",
    "`Unschedulable` with the scheduler's message",
    "the drain is not blocked; the model serves again, without a second parity check, when a node can run its pods",
)
def test_a_drain_of_the_node_of_the_volume_ends_and_the_model_comes_back(served: Space) -> None:
    wait_for("two pods", lambda: served.model()["status"].get("readyReplicas") == 2, seconds=ENGINE_SECONDS)
    before = {pod["metadata"]["uid"] for pod in served.pods()}
    checks = {job["metadata"]["uid"] for job in served.jobs("parity")}
    (node,) = {pod["spec"]["nodeName"] for pod in served.pods()}
    with drained(served.kube, node, "encoders.dev/model=minilm"):
        assert before.isdisjoint(pod["metadata"]["uid"] for pod in served.pods())
        served.wait_condition("Available", "Unschedulable", seconds=60)
        assert condition(served.model(), "Ready")["status"] == "False"
    served.wait_ready()
    wait_for("two pods", lambda: served.model()["status"].get("readyReplicas") == 2, seconds=ENGINE_SECONDS)
    assert served.post({"data": {"text": "a cat sleeps"}}).status == 200
    assert {job["metadata"]["uid"] for job in served.jobs("parity")} <= checks
