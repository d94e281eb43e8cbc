"""Whose gate is open: where products can't be told apart each pod is compared, and another image is another engine."""

import json

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import POD, Body, condition, is_true
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn, fails, verdict

GATE = "encoders.dev/parity"


def ready(scene: Scene) -> list[Body]:
    return [pod for pod in scene.pods() if is_true(pod, "Ready")]


@pytest.mark.fault(
    "one GPU computes something else than the others",
    "`ParityFailed` on Degraded",
    "its pod gets no traffic, the others serve on",
)
def test_without_nodes_each_pod_is_compared_by_itself(
    scene: Scene, stand_in: StandIn, stopped_operator: OperatorProcess
) -> None:
    stopped_operator.start(ENCODER_NAMESPACES=json.dumps([scene.name]))
    stopped_operator.wait_ready()
    wrong: set[str] = set()

    def compare(pod: Body) -> object:
        arguments = pod["spec"]["containers"][0]["args"]
        asked = json.loads(arguments[arguments.index("--binding") + 1])["uid"]
        return fails(pod) if asked in wrong else verdict(pod)

    stand_in.parity = compare  # type: ignore[assignment]
    serving = {"accelerator": "nvidia", "resources": {}, "replicas": 2}
    scene.apply_model(serving=serving, rollout={"minReadySeconds": 0})
    scene.wait_current("Ready", seconds=60)
    wait_for("two pods, two comparisons", lambda: (len(ready(scene)), len(scene.jobs("parity"))) == (2, 2), seconds=60)
    known = {pod["metadata"]["uid"] for pod in scene.pods()}

    def place(pod: Body) -> str:
        if pod["metadata"]["labels"]["encoders.dev/component"] == "serving" and pod["metadata"]["uid"] not in known:
            wrong.add(pod["metadata"]["uid"])
        return "node-1"

    stand_in.place = place
    scene.patch_serving({"replicas": 3})
    scene.wait_condition("Degraded", "ParityFailed", seconds=60)
    assert {pod["metadata"]["uid"] for pod in ready(scene)} == known
    assert is_true(scene.model(), "Available")


@pytest.mark.fault(
    "a verified pod's container runs another image",
    "`NotVerified` on the pod's gate",
    "no traffic until that image is compared by itself",
)
def test_another_image_closes_the_gate_until_it_is_compared(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0}, serving={"replicas": 2})
    scene.wait_current("Ready", seconds=60)
    wait_for("two pods", lambda: len(ready(scene)) == 2, seconds=30)
    stand_in.parity = fails
    pod = scene.pods()[0]
    container = {
        **pod["status"]["containerStatuses"][0],
        "imageID": "sha256:other",
        "containerID": "containerd://other",
    }
    scene.kube.patch_status(POD, pod["metadata"]["name"], scene.name, {"containerStatuses": [container]})

    def closed() -> bool:
        live = scene.kube.get(POD, pod["metadata"]["name"], scene.name)
        return condition(live, GATE).get("status") == "False"

    wait_for("its gate is closed", closed, seconds=30)
    scene.wait_condition("Degraded", "ParityFailed", seconds=60)
    wait_for("one pod serves", lambda: len(ready(scene)) == 1, seconds=30)
    assert is_true(scene.model(), "Available")
