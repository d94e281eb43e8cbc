"""Objects of other users that have the name of a child: never taken over, never changed, and reported by their name."""

from collections.abc import Iterator

import pytest

from encoder_node import module_sources
from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_platform.kube import DEPLOYMENT, Body, Kind, Kube, condition
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

LABELS = {"app": "somebody-elses"}
SERVICE, CLAIM = ("v1", "Service"), ("v1", "PersistentVolumeClaim")
POLICY, BUDGET = ("networking.k8s.io/v1", "NetworkPolicy"), ("policy/v1", "PodDisruptionBudget")
ROUTE = ("gateway.networking.k8s.io/v1", "HTTPRoute")
ROUTES = "httproutes.gateway.networking.k8s.io"
CONTAINER = {"name": "web", "image": "web:1"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [CONTAINER]}}
SELECTOR = {"matchLabels": LABELS}

# by the model's name: whose child's name is taken, by what, and what the model sets so that it needs that child
FOREIGN: dict[str, tuple[Kind, Body, Body]] = {
    "deployed": (DEPLOYMENT, {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE}, {}),
    "served": (SERVICE, {"selector": LABELS, "ports": [{"port": 9}]}, {}),
    "stored": (
        CLAIM,
        {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}},
        {"storage": {"create": {"size": "1Gi"}, "policy": "Delete"}},
    ),
    "walled": (POLICY, {"podSelector": SELECTOR}, {"network": {"networkPolicy": {}}}),
    "budgeted": (
        BUDGET,
        {"selector": SELECTOR, "minAvailable": 1},
        {
            "serving": {"accelerator": "cpu", "replicas": 2},
            "storage": {"create": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}},
        },
    ),
    "routed": (
        ROUTE,
        {"parentRefs": [{"name": "theirs"}]},
        {"network": {"httpRoute": {"parentRefs": [{"name": "ours"}]}}},
    ),
}


@pytest.fixture
def gateway_api(kube: Kube) -> Iterator[None]:
    """The resource HTTPRoute."""
    folder = module_sources.folder(module_sources.GATEWAY_API) / "config/crd/standard"
    kube.run("apply", "--server-side", "-f", str(folder / "gateway.networking.k8s.io_httproutes.yaml"))
    group = ("api-resources", "--api-group=gateway.networking.k8s.io", "-o", "name")
    wait_for("the new kind", lambda: ROUTES in kube.run(*group, check=False).split(), seconds=60)
    yield
    kube.run("delete", "crd", ROUTES, "--ignore-not-found", check=False)


def child(model: str) -> str:
    return naming.artifacts_pvc(model) if FOREIGN[model][0] == CLAIM else model


def theirs(scene: Scene, model: str) -> Body:
    """The part of a foreign object that only its owner may change; volumes are bound, and controllers write a status."""
    found = scene.kube.get(FOREIGN[model][0], child(model), scene.name)
    assert found is not None
    meta, spec = found["metadata"], dict(found["spec"])
    spec.pop("volumeName", None)
    managers = {entry["manager"] for entry in meta["managedFields"]}
    kept = {key: meta.get(key) for key in ("uid", "labels", "ownerReferences", "finalizers")}
    return {**kept, "spec": spec, "ours": naming.MANAGER in managers}


def test_a_foreign_object_is_never_taken_over_and_its_name_is_polled(
    scene: Scene, stand_in: StandIn, gateway_api: None, stopped_operator: OperatorProcess
) -> None:
    for model, (kind, spec, _) in FOREIGN.items():
        metadata = {"name": child(model), "namespace": scene.name, "labels": LABELS}
        scene.kube.apply({"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, "spec": spec})
    before = {model: theirs(scene, model) for model in FOREIGN}
    assert not any(found["ours"] for found in before.values())
    stopped_operator.start()
    stopped_operator.wait_ready()
    for model, (_, _, fields) in FOREIGN.items():
        scene.apply_model(model, rollout={"minReadySeconds": 0}, **fields)
    for model, (kind, _, _) in FOREIGN.items():
        refused = scene.wait_condition("Accepted", "NameConflict", model, seconds=60)
        assert refused["status"] == "False"
        assert refused["message"].startswith(
            f"{kind[1]} {child(model)} already exists and does not belong to this EncoderModel"
        )
        assert condition(scene.model(model), "Ready")["reason"] == "NameConflict"
        assert scene.pods(model) == []
    # deleted, a model takes nothing with it that it never had, whatever its policy says of claims
    scene.kube.run("-n", scene.name, "delete", "em", "stored", "--wait")
    assert {model: theirs(scene, model) for model in FOREIGN} == before
    # no name is watched for: it is looked for again, twice a minute
    for model in FOREIGN:
        scene.kube.delete(FOREIGN[model][0], child(model), scene.name)
    scene.apply_model("stored", rollout={"minReadySeconds": 0}, **FOREIGN["stored"][2])
    for model, (kind, _, _) in FOREIGN.items():
        scene.wait_current("Ready", model, seconds=90)
        made = scene.kube.get(kind, child(model), scene.name)
        assert made is not None
        assert made["metadata"]["uid"] != before[model]["uid"]
        assert made["metadata"]["labels"][naming.MODEL] == model
