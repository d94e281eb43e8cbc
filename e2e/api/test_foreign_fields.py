"""Fields of children that others set: those that would bypass the readiness gate are taken back, others are reported."""

import json
import re
import threading

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import DEPLOYMENT, Body, condition, is_true
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn, settle

SERVICE = ("v1", "Service")


@pytest.fixture
def served(scene: Scene, stand_in: StandIn, operator: OperatorProcess) -> Scene:
    """A model that serves."""
    scene.apply_model(rollout={"minReadySeconds": 0})
    scene.wait_current("Ready", seconds=60)
    return scene


@pytest.mark.fault(
    "someone sets a field of the Service or the Deployment that bypasses the readiness gate",
    "nothing",
    "the field is set back",
)
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (SERVICE, {"publishNotReadyAddresses": True}),
        (SERVICE, {"type": "ExternalName", "externalName": "elsewhere.example"}),
        (DEPLOYMENT, {"paused": True}),
    ],
    ids=["publishNotReadyAddresses", "ExternalName", "paused"],
)
def test_a_field_that_bypasses_the_gate_is_taken_back(kind: tuple[str, str], spec: Body, served: Scene) -> None:
    served.kube.patch(kind, "minilm", served.name, {"spec": spec})

    def taken_back() -> bool:
        live = (served.kube.get(kind, "minilm", served.name) or {})["spec"]
        return live.get("type", "ClusterIP") == "ClusterIP" and not any(live.get(name) is True for name in spec)

    wait_for("the field is set back", taken_back, seconds=90)
    assert not is_true(served.model(), "Degraded")


@pytest.mark.fault(
    "someone changes the pod template of the Deployment",
    "`ForeignField` on Degraded, with the fields",
    "reported until the fields are removed",
)
def test_a_field_of_the_pod_template_that_another_client_has_set_is_reported(served: Scene) -> None:
    served.kube.run("-n", served.name, "rollout", "restart", "deployment/minilm")
    change = {"spec": {"template": {"spec": {"containers": [{"name": "spy", "image": "spy:1"}], "hostNetwork": False}}}}
    apply = ("apply", "--server-side", "--field-manager=someone", "-f", "-")
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "minilm", "namespace": served.name}}
    served.kube.run(*apply, stdin=json.dumps({**body, **change}))
    found = served.wait_condition("Degraded", "ForeignField", seconds=90)
    assert found["message"].endswith(": spec.template.spec.containers[spy], spec.template.spec.hostNetwork")
    served.kube.run(*apply, stdin=json.dumps(body))
    wait_for("no problem", lambda: not is_true(served.model(), "Degraded"), seconds=90)
    assert condition(served.model(), "Degraded")["reason"] == "AsExpected"


def metric(operator: OperatorProcess, name: str) -> float:
    """Return the sum of a metric's series."""
    _, page = operator.get("metrics")
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


@pytest.mark.soak
def test_a_client_that_undoes_every_write_cannot_keep_the_operator_busy(
    served: Scene, operator: OperatorProcess
) -> None:
    stop = threading.Event()

    def fight() -> None:
        while not stop.wait(0.02):
            served.kube.patch(DEPLOYMENT, "minilm", served.name, {"spec": {"paused": True}})

    thread = threading.Thread(target=fight)
    thread.start()
    try:
        # a busy machine reconciles hardly more often than the limit allows
        wait_for("it is throttled", lambda: metric(operator, "encoder_reconcile_throttled_total") > 0, seconds=240)
        before = metric(operator, "encoder_child_updates_total")
        settle(6)
        assert 1 <= metric(operator, "encoder_child_updates_total") - before <= 5
        # other models are not delayed
        served.apply_model("other", rollout={"minReadySeconds": 0})
        served.wait_current("Ready", "other", seconds=90)
    finally:
        stop.set()
        thread.join()
    wait_for("the last word", lambda: not (served.deployment() or {})["spec"].get("paused"), seconds=60)
