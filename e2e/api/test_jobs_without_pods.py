"""What the API server refuses below the operator: pods of its Jobs, and Nodes that it may not read. Users see why in the status."""

import json
from collections.abc import Iterator

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import Body, Kube, condition, is_true
from encoder_platform.operator_process import NAME, OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

QUOTA = ("v1", "ResourceQuota")
ROLE = ("rbac.authorization.k8s.io/v1", "ClusterRole")
NOW = {"minReadySeconds": 0}
SHARED = {"create": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}


def quota(scene: Scene, pods: int) -> None:
    metadata = {"name": "pods", "namespace": scene.name}
    scene.kube.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": str(pods)}}}
    )

    def counted() -> bool:
        found = scene.kube.get(QUOTA, "pods", scene.name)
        return found is not None and (found.get("status") or {}).get("hard", {}).get("pods") == str(pods)

    wait_for("the quota in effect", counted, seconds=90)


@pytest.mark.fault(
    "a quota or an admission policy refuses the pods of a prep Job",
    "`PodsRefused` on ArtifactReady, with the message of the Job's event",
    "the Job creates its pod as soon as it is admitted",
)
def test_a_prep_job_whose_pods_are_refused_says_why(scene: Scene, stand_in: StandIn, operator: OperatorProcess) -> None:
    quota(scene, 0)
    scene.apply_model(rollout=NOW)
    found = scene.wait_condition("ArtifactReady", "PodsRefused", seconds=60)
    (job,) = scene.jobs("prep")
    assert job["metadata"]["name"] in found["message"]
    assert "exceeded quota: pods" in found["message"]
    live = scene.model()
    assert condition(live, "Progressing")["reason"] == "PodsRefused"
    assert condition(live, "Ready")["reason"] == "PodsRefused"
    # nothing fails for good: the Job goes on trying
    scene.kube.delete(QUOTA, "pods", scene.name)
    scene.wait_current("Ready", seconds=120)
    assert [entry["metadata"]["uid"] for entry in scene.jobs("prep")] == [job["metadata"]["uid"]]


def test_a_parity_job_whose_pods_are_refused_says_why(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    stand_in.loads = lambda _: False
    scene.apply_model(rollout=NOW)
    wait_for("a serving pod", lambda: scene.pods(), seconds=60)
    # a pod that has ended takes no part in a quota
    quota(scene, 1)
    stand_in.loads = lambda _: True
    wait_for("a parity Job", lambda: scene.jobs("parity"), seconds=60)
    wait_for("why", lambda: "exceeded quota: pods" in condition(scene.model(), "Verified")["message"], seconds=60)
    (job,) = scene.jobs("parity")
    assert job["metadata"]["name"] in condition(scene.model(), "Verified")["message"]
    scene.kube.delete(QUOTA, "pods", scene.name)
    scene.wait_current("Ready", seconds=120)


@pytest.fixture
def no_nodes(kube: Kube) -> Iterator[None]:
    """The operator's role without the permission to read nodes."""
    role = kube.get(ROLE, NAME)
    assert role is not None
    rules = role["rules"]

    def set_rules(found: list[Body]) -> None:
        patch = json.dumps([{"op": "replace", "path": "/rules", "value": found}])
        kube.run("patch", "clusterrole", NAME, "--type=json", "-p", patch)

    set_rules([rule for rule in rules if "nodes" not in rule["resources"]])
    yield
    set_rules(rules)


@pytest.mark.fault(
    "the operator lacks permission to read nodes",
    "`WriteRefused` on Progressing and Degraded, with the message of the API server",
    "reconciled again with backoff; pods keep serving",
)
@pytest.mark.usefixtures("no_nodes")
def test_nodes_that_may_not_be_read_are_shown_in_the_status(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    stand_in.add_node("gpu-1", {"nvidia.com/gpu.product": "NVIDIA-L4"}, **{"nvidia.com/gpu": "8"})
    component = "encoders.dev/component"
    stand_in.place = lambda pod: "gpu-1" if pod["metadata"]["labels"][component] == "serving" else "node-1"
    scene.apply_model(storage=SHARED, serving={"accelerator": "nvidia", "resources": {}}, rollout=NOW)
    found = scene.wait_condition("Degraded", "WriteRefused", seconds=90)
    assert found["status"] == "True"
    assert 'nodes "gpu-1" is forbidden' in found["message"]
    assert not is_true(scene.model(), "Ready")
