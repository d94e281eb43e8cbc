"""A HorizontalPodAutoscaler on the EncoderModel itself: the operator follows, and nobody takes the number back."""

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import metrics_server
from encoder_platform.kube import Body
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

WAITING = "vllm_waiting_requests"


def autoscaler(namespace: str) -> Body:
    """Ten waiting requests for each pod, and no stabilisation window, so that a test sees it scale down."""
    metric = {"metric": {"name": WAITING}, "target": {"type": "AverageValue", "averageValue": "10"}}
    spec = {
        "scaleTargetRef": {"apiVersion": "encoders.dev/v1alpha1", "kind": "EncoderModel", "name": "minilm"},
        "minReplicas": 1,
        "maxReplicas": 3,
        "metrics": [{"type": "External", "external": metric}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    meta = {"name": "minilm", "namespace": namespace}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec}


@pytest.mark.complaint(24)
def test_an_autoscaler_scales_the_model(
    plane: Plane, scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    def ready() -> int:
        number: int = scene.model()["status"].get("readyReplicas", 0)
        return number

    scene.apply_model()
    verdict = scene.wait_ready()["status"]["parity"]
    pki = plane.control.kubeconfig.parent
    with metrics_server.running(scene.kube, pki / "apiserver.crt", pki / "apiserver.key") as waiting:
        waiting.value = 25
        scene.kube.apply(autoscaler(scene.name))
        wait_for("three ready pods", lambda: ready() == 3, seconds=120)
        # a manifest that leaves the number out does not take it back
        scene.apply_model()
        assert scene.model()["spec"]["serving"]["replicas"] == 3
        waiting.value = 1
        wait_for("one pod", lambda: ready() == 1 and len(scene.pods()) == 1, seconds=120)
    assert scene.model()["status"]["parity"] == verdict
    assert len(scene.jobs("parity")) == 1
