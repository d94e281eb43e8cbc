"""The operator with rights in some namespaces only: the chart's Roles are enough for it, and it stays inside of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_node.control_plane import ControlPlane
from encoder_platform import manifests
from encoder_platform.kube import MODELS, Kube
from encoder_platform.operator_process import OperatorProcess, operator_process
from encoder_platform.plane import apply_chart
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

INSIDE, OUTSIDE = "watched", "not-watched"


@pytest.fixture
def kube(control: ControlPlane) -> Iterator[Kube]:
    kube = Kube(control.kubeconfig, control.kubectl)
    for name in (INSIDE, OUTSIDE):
        kube.apply(manifests.namespace(name), manifests.claim("artifacts", name))
    apply_chart(kube, f"watch.namespaces={{{INSIDE}}}")
    yield kube
    for name in (INSIDE, OUTSIDE):
        kube.delete(("v1", "Namespace"), name)
    # another test finds a cluster without the chart
    for kind in ("validatingadmissionpolicy", "validatingadmissionpolicybinding", "clusterrole", "clusterrolebinding"):
        kube.run("delete", kind, "-l", "app.kubernetes.io/name=encoder-operator")
    kube.run("delete", "crd", "encodermodels.encoders.dev")
    kube.run("delete", "namespace", "encoder-operator")


@pytest.fixture
def operator(kube: Kube, tmp_path: Path) -> Iterator[OperatorProcess]:
    with operator_process(kube, tmp_path) as found:
        found.start()
        found.wait_ready()
        yield found


def test_models_inside_are_served_and_others_are_left_alone(kube: Kube, operator: OperatorProcess) -> None:
    stand_in = StandIn(kube)
    stand_in.furnish()
    inside, outside = Scene(INSIDE, kube), Scene(OUTSIDE, kube)
    with stand_in.running():
        outside.apply_model()
        inside.apply_model()
        live = inside.wait_current("Ready", seconds=90)
    assert live["status"]["phase"] == "Serving"
    assert outside.model().get("status") in (None, {})
    assert outside.pods() == []
    status, text = operator.ask("metrics")
    assert status == 200
    refused = [
        line for line in text.splitlines() if line.startswith("encoder_api_requests_total") and 'code="403"' in line
    ]
    assert refused == []
    # nor does it keep asking for what it may not have
    assert not [line for line in operator.lines() if "forbidden" in str(line).lower()]
    assert kube.get(MODELS, "minilm", OUTSIDE) is not None
