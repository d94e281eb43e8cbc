"""Case 11: a pool with one GPU, which is taken: an update waits and says so; Recreate makes room; several engines share it.

The GPU is a number in the node's status, and the engine computes on the CPU: what is tested is who waits for what.
"""

import json
from collections.abc import Iterator

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import install
from encoder_platform.kube import Body, condition
from encoder_platform.space import Space

GPU, NODE = "nvidia.com/gpu", ("v1", "Node")
MODEL = {
    "serving": {
        "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "12Gi", GPU: "1"}},
    }
}
# e2e/api has a full pool on a stand-in for the scheduler, test_device_by_claim the real scheduler's words, and the plugins' tests several
# engines behind one port; what is left for the node takes minutes of both cores
pytestmark = pytest.mark.soak
# two engines with two API servers each
SHARED = {"apiServerCount": 2, "enginesPerAccelerator": 2}
ENGINES = "grep -l '^VLLM::EngineCor' /proc/[0-9]*/comm"


@pytest.fixture(scope="module")
def one_gpu(platform: install.Platform) -> Iterator[None]:
    kube = platform.kube
    node = kube.all(NODE, "")[0]["metadata"]["name"]
    kube.patch_status(NODE, node, None, {"capacity": {GPU: "1"}, "allocatable": {GPU: "1"}})
    yield
    gone = [{"op": "remove", "path": f"/status/{where}/nvidia.com~1gpu"} for where in ("capacity", "allocatable")]
    kube.run("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(gone), check=False)


@pytest.fixture(scope="module")
def on_one_gpu(one_gpu: None, served: Space) -> Space:
    return served


def insufficient(space: Space) -> Body:
    found = space.wait_condition("Progressing", "InsufficientGPU", seconds=60)
    assert found["status"] == "False"
    assert f"Insufficient {GPU}" in found["message"], "these are not the scheduler's words"
    return found


@pytest.mark.complaint(19)
@pytest.mark.complaint(8)
@pytest.mark.fault(
    "all GPUs are in use: more replicas than GPUs, or an update that needs one more",
    "`InsufficientGPU` with the scheduler's message; `Available` stays True",
    "serving pods keep serving; with `rollout.strategy: Recreate` the old pod is removed first",
)
def test_a_full_gpu_pool_is_reported_and_recreate_makes_room(on_one_gpu: Space) -> None:
    space = on_one_gpu
    first = space.pods()[0]["metadata"]["uid"]
    space.kube.run("-n", space.name, "scale", "em/minilm", "--replicas=2")
    insufficient(space)
    space.kube.run("-n", space.name, "scale", "em/minilm", "--replicas=1")
    wait_for("one pod", lambda: [p["metadata"]["uid"] for p in space.pods()] == [first], seconds=60)

    space.patch_serving(SHARED)
    wait_for("a candidate", lambda: len(space.pods()) == 2, seconds=60)
    insufficient(space)
    assert condition(space.model(), "Available")["status"] == "True"
    assert condition(space.model(), "UpToDate")["status"] == "False"
    assert space.post({"data": {"text": "still the old one"}}).status == 200

    space.patch({"rollout": {"strategy": "Recreate"}})
    space.wait_ready(seconds=400)
    assert [p["metadata"]["uid"] == first for p in space.pods()] == [False]
    assert space.model()["status"]["parity"]["result"] == "Passed"


def engines(space: Space) -> list[str]:
    """The process ids, in the pod, of its engines."""
    pod = space.pods()[0]["metadata"]["name"]
    found = space.kube.run("-n", space.name, "exec", pod, "--", "sh", "-c", ENGINES, check=False)
    return [path.split("/")[2] for path in found.split()]


@pytest.mark.fault(
    "one of several engines that share a GPU is killed with SIGKILL",
    "the container restarts, because readiness covers all engines",
    "all engines restart together, verified",
)
def test_engines_that_share_a_gpu_live_and_die_together(on_one_gpu: Space) -> None:
    space = on_one_gpu
    found = engines(space)
    assert len(found) == SHARED["enginesPerAccelerator"]
    answers = {space.post({"data": {"text": "both answer alike"}}).body["data"]["embeddings"][0][0] for _ in range(6)}
    assert max(answers) - min(answers) < 1e-6
    pod = space.pods()[0]["metadata"]["name"]
    space.kube.run("-n", space.name, "exec", pod, "--", "sh", "-c", f"kill -9 {found[1]}")

    def restarted() -> bool:
        status = space.pods()[0]["status"]
        return bool(status["containerStatuses"][0]["restartCount"] == 1)

    wait_for("the container restarted", restarted, seconds=120)
    wait_for("ready again", lambda: condition(space.pods()[0], "Ready").get("status") == "True", seconds=300)
    assert len(engines(space)) == SHARED["enginesPerAccelerator"]
    assert space.post({"data": {"text": "back"}}).status == 200
