"""Which requests the admission policies evaluate, and whom they trust."""

import json

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import chart, manifests
from encoder_platform.chart import Body, Helm, OnCluster
from encoder_platform.kube import Kube

# the fixture `cluster` creates it
TEAM = "team-a"
CONTROLLER, STRANGER = "controller", "stranger"
COMPONENT = "encoders.dev/component"
GATE, REST = "is the readiness gate of an EncoderModel", "only kubelets and the controllers"
CHILDREN = "belong to an EncoderModel"


def policies(helm: Helm, values: Body) -> dict[str, Body]:
    """Return the specs of the policies by the end of their names."""
    found = [body for body in helm.render(values) if body["kind"] == "ValidatingAdmissionPolicy"]
    return {body["metadata"]["name"].rpartition("-")[2]: body["spec"] for body in found}


def test_a_policy_rejects_what_it_cannot_evaluate_and_matches_only_pods_of_models(helm: Helm) -> None:
    found = policies(helm, {})
    assert {name: spec["failurePolicy"] for name, spec in found.items()} == dict.fromkeys(
        ("gate", "children", "inside"), "Fail"
    )
    assert found["gate"]["matchConstraints"]["objectSelector"] == {
        "matchExpressions": [{"key": COMPONENT, "operator": "Exists"}]
    }
    # what they match cannot be selected by labels of its own: an owner or a template decides, or there is no object
    conditions = {name: {entry["name"] for entry in spec["matchConditions"]} for name, spec in found.items()}
    assert "of-an-encodermodel" in conditions["children"]
    assert "a-pod-of-a-job-of-an-encodermodel" in conditions["inside"]


def pod(name: str, labels: Body) -> Body:
    container = {"name": "c", "image": "e:1", "securityContext": manifests.LOCKED_CONTAINER}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM, "labels": labels},
        "spec": {"securityContext": manifests.RESTRICTED, "containers": [container]},
    }


@pytest.mark.fault(
    "a controller that is not Kubernetes' own changes a pod of an EncoderModel",
    "`Forbidden`, and the value `gatePolicy.trustedControllers`",
    "the change is rejected unless the controller is listed there; no controller but the operator changes a gate",
)
def test_a_trusted_controller_changes_pods_of_models_and_other_pods_are_not_restricted(
    helm: Helm, cluster: OnCluster, kube: Kube
) -> None:
    cluster(helm).upgrade(chart.CHART, values={"gatePolicy": {"trustedControllers": [CONTROLLER]}})
    kube.run("-n", TEAM, "create", "role", "pods", "--verb=create,get,update,patch", "--resource=pods,pods/status")
    for user in (CONTROLLER, STRANGER):
        kube.run("-n", TEAM, "create", "rolebinding", user, "--role=pods", f"--user={user}")
    kube.run("apply", "-f", "-", stdin=json.dumps(pod("ours", {COMPONENT: "serving"})))
    kube.run("apply", "-f", "-", stdin=json.dumps(pod("theirs", {"a": "b"})))

    def create(user: str, labels: Body) -> str:
        body = json.dumps(pod("new", labels))
        return kube.run("create", "--dry-run=server", "-f", "-", f"--as={user}", stdin=body, check=False)

    def condition(user: str, name: str, kind: str) -> str:
        """Set a condition of a pod's status."""
        change = json.dumps({"status": {"conditions": [{"type": kind, "status": "True", "reason": "Forged"}]}})
        arguments = ("patch", "pod", name, "--subresource=status", "--dry-run=server", "-p", change)
        return kube.run("-n", TEAM, *arguments, f"--as={user}", check=False)

    def in_effect() -> bool:
        ours = {COMPONENT: "serving"}
        return CHILDREN in create(STRANGER, ours) and GATE in condition(STRANGER, "ours", "encoders.dev/parity")

    wait_for("the policies in effect", in_effect, seconds=60)
    # the pod of another team, for each user and condition
    for user in (CONTROLLER, STRANGER):
        assert "pod/new created" in create(user, {"a": "b"})
        for kind in ("Ready", "encoders.dev/parity"):
            assert "pod/theirs patched" in condition(user, "theirs", kind)
    assert REST in condition(STRANGER, "ours", "Ready")
    assert "pod/new created" in create(CONTROLLER, {COMPONENT: "serving"})
    assert "pod/ours patched" in condition(CONTROLLER, "ours", "Ready")
    # a gate is the operator's alone
    for kind in ("encoders.dev/parity", "encoders.dev/platform"):
        assert GATE in condition(CONTROLLER, "ours", kind)
