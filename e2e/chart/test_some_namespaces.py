"""The operator with rights in some namespaces only: the chart's Roles are enough for it, and it stays inside of them."""

from pathlib import Path

from encoder_node.waiting import wait_for
from encoder_platform import chart, manifests
from encoder_platform.chart import Helm, OnCluster
from encoder_platform.kube import MODELS, Kube
from encoder_platform.operator_process import operator_process
from encoder_platform.plane import established
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

# the fixture `cluster` makes them
INSIDE, OUTSIDE = "team-a", "team-b"


def test_models_inside_are_served_and_others_are_left_alone(
    helm: Helm, cluster: OnCluster, kube: Kube, tmp_path: Path
) -> None:
    cluster(helm).upgrade(chart.CHART, values={"watch": {"namespaces": [INSIDE]}})
    wait_for("the EncoderModel API", lambda: established(kube), seconds=30)
    stand_in = StandIn(kube)
    stand_in.furnish()
    inside, outside = Scene(INSIDE, kube), Scene(OUTSIDE, kube)
    for scene in (inside, outside):
        kube.apply(manifests.claim("artifacts", scene.name))
    with operator_process(kube, tmp_path) as operator:
        operator.start()
        operator.wait_ready()
        with stand_in.running():
            outside.apply_model()
            inside.apply_model()
            live = inside.wait_current("Ready", seconds=90)
        status, text = operator.get("metrics")
        lines = operator.lines()
    assert live["status"]["phase"] == "Serving"
    assert outside.model().get("status") in (None, {})
    assert outside.pods() == []
    assert kube.get(MODELS, "minilm", OUTSIDE) is not None
    # nor does it keep requesting what it may not read
    assert status == 200
    requests = [line for line in text.splitlines() if line.startswith("encoder_api_requests_total")]
    assert requests
    assert not [line for line in requests if 'code="403"' in line]
    assert not [line for line in lines if "forbidden" in str(line).lower()]
