"""A route through a Gateway: reported as missing without the Gateway API, made once that is there, and found as it was wanted."""

import copy
import json

from encoder_node import module_sources
from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_operator.cli import render
from encoder_operator.client import apply_diff
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

CRD = "httproutes.gateway.networking.k8s.io"
WHOLE = {
    "parentRefs": [{"name": "edge", "namespace": "gateways", "sectionName": "https"}, {"name": "inside"}],
    "hostnames": ["models.internal"],
    "pathPrefix": "/minilm",
}
LEAST = {"parentRefs": [{"name": "edge"}]}


def rendered(live: Json, route: Json) -> Json:
    model = copy.deepcopy(live)
    model["spec"]["network"] = {"httpRoute": route}
    found = render.render_children(model, SETTINGS)
    return next(child for child in found if child["kind"] == "HTTPRoute")


def test_a_route_needs_the_gateway_api_and_goes_with_its_field(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    scene.apply_model()
    scene.patch({"network": {"httpRoute": WHOLE}})
    scene.wait_current("Ready", seconds=60)
    assert scene.wait_condition("Degraded", "GatewayApiMissing", seconds=90)["status"] == "True"
    folder = module_sources.folder(module_sources.GATEWAY_API) / "config/crd/standard"
    scene.kube.run("apply", "--server-side", "-f", str(folder / "gateway.networking.k8s.io_httproutes.yaml"))
    try:
        group = ("api-resources", "--api-group=gateway.networking.k8s.io", "-o", "name")
        wait_for("the new kind", lambda: CRD in scene.kube.run(*group, check=False).split(), seconds=60)
        live = scene.model()
        for route in (WHOLE, LEAST):
            wanted = rendered(live, route)
            options = ("--server-side", "--dry-run=server", "--validate=strict", f"--field-manager={naming.MANAGER}")
            shown = ("--show-managed-fields", "-o", "json")
            made = json.loads(scene.kube.run("apply", *options, *shown, "-f", "-", stdin=json.dumps(wanted)))
            assert apply_diff.is_up_to_date(wanted, made)
        # it looks for new kinds rarely, and when it starts
        operator.restart()
        scene.wait_condition("Degraded", "AsExpected", seconds=60)
        made = json.loads(scene.kube.run("-n", scene.name, "get", CRD, "minilm", "--show-managed-fields", "-o", "json"))
        assert apply_diff.is_up_to_date(rendered(live, WHOLE), made)
        routes = ("-n", scene.name, "get", CRD, "-o", "name")
        scene.patch({"network": {"httpRoute": None}})
        wait_for("the route goes", lambda: not scene.kube.run(*routes).strip(), seconds=90)
        scene.patch({"network": {"httpRoute": LEAST}})
        wait_for("a route again", lambda: scene.kube.run(*routes).strip() != "", seconds=90)
    finally:
        scene.kube.run("delete", "crd", CRD, "--ignore-not-found", check=False)
    # what it knows of the cluster's kinds is old now, and holds nothing up
    scene.patch_serving({"maxModelLen": 64})
    assert scene.wait_condition("Degraded", "GatewayApiMissing", seconds=60)["status"] == "True"
    scene.wait_current("Ready", seconds=60)
