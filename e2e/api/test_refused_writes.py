"""What the operator may not write is reported on the model, and done when it may."""

import copy

import pytest

from encoder_platform.kube import Body, condition, is_true
from encoder_platform.operator_process import NAME, OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

ROLE = ("rbac.authorization.k8s.io/v1", "ClusterRole")
QUOTA = ("v1", "ResourceQuota")


def without_writes(role: Body, resource: str) -> list[Body]:
    rules = copy.deepcopy(role["rules"])
    for rule in rules:
        if resource in rule["resources"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb in ("get", "list", "watch")]
    return list(rules)


@pytest.mark.fault(
    "a permission of the operator is removed and restored",
    "`WriteRefused` with the API server's message",
    "pods keep serving; the edit is applied after the permission is restored",
)
def test_a_missing_permission_is_reported_until_it_is_restored(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0})
    first = scene.wait_current("Ready", seconds=60)["status"]["activeRevision"]
    role = scene.kube.get(ROLE, NAME)
    assert role is not None
    scene.kube.patch(ROLE, NAME, "", {"rules": without_writes(role, "deployments")})
    try:
        scene.patch_serving({"maxModelLen": 64})
        refused = scene.wait_condition("Progressing", "WriteRefused", seconds=60)
        assert "deployments" in refused["message"]
        assert "forbidden" in refused["message"]
        live = scene.model()
        assert condition(live, "Degraded")["reason"] == "WriteRefused"
        assert is_true(live, "Available")
        assert not is_true(live, "Ready")
        assert live["status"]["activeRevision"] == first
    finally:
        scene.kube.patch(ROLE, NAME, "", {"rules": role["rules"]})
    assert scene.wait_current("Ready", seconds=120)["status"]["activeRevision"] != first
    assert condition(scene.model(), "Degraded")["reason"] == "AsExpected"
    assert [len(scene.jobs("prep")), len(scene.jobs("parity"))] == [1, 2]


@pytest.mark.fault(
    "a quota prevents another Job",
    "`WriteRefused` with the quota's name",
    "the Job is created when the quota allows it",
)
def test_an_exhausted_quota_is_reported(scene: Scene, stand_in: StandIn, operator: OperatorProcess) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-jobs", "namespace": scene.name}}
    scene.kube.apply({**quota, "spec": {"hard": {"count/jobs.batch": "0"}}})
    scene.apply_model(rollout={"minReadySeconds": 0})
    assert "no-jobs" in scene.wait_condition("Progressing", "WriteRefused", seconds=60)["message"]
    scene.kube.delete(QUOTA, "no-jobs", scene.name)
    scene.wait_current("Ready", seconds=120)


@pytest.mark.fault(
    "a pod template override has a field of another type, such as a number as the value of a variable",
    "`WriteRefused` with the path of the field",
    "pods keep serving; the edit is applied after it is corrected",
)
def test_a_pod_template_with_a_field_of_another_type_is_reported(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    def variable(value: object) -> Body:
        return {"podTemplate": {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": value}]}]}}}

    scene.apply_model(rollout={"minReadySeconds": 0})
    first = scene.wait_current("Ready", seconds=60)["status"]["activeRevision"]
    scene.patch_serving(variable(1))
    refused = scene.wait_condition("Degraded", "WriteRefused", seconds=60)
    assert '.env[name="A"].value: expected string' in refused["message"]
    assert scene.model()["status"]["activeRevision"] == first
    scene.patch_serving(variable("1"))
    assert scene.wait_current("Ready", seconds=60)["status"]["activeRevision"] != first


@pytest.mark.fault(
    "a pod template override has a value that the API server does not take",
    "`WriteRefused` with the path of the field, before the prep Job is created",
    "the artifact is prepared after it is corrected",
)
def test_an_invalid_pod_template_is_reported_before_the_preparation(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    serving = {"accelerator": "cpu", "podTemplate": {"spec": {"dnsPolicy": "Foo"}}}
    scene.apply_model(serving=serving, rollout={"minReadySeconds": 0})
    refused = scene.wait_condition("ArtifactReady", "WriteRefused", seconds=60)
    assert 'spec.template.spec.dnsPolicy: Unsupported value: "Foo"' in refused["message"]
    assert scene.jobs("prep") == []
    scene.patch_serving({"podTemplate": {"spec": {"dnsPolicy": "Default"}}})
    scene.wait_current("Ready", seconds=60)


@pytest.mark.fault(
    "the pod template override of a model is so large that etcd refuses its Deployment",
    "`WriteRefused` with etcd's message",
    "the Deployment is created after the override is made smaller",
)
def test_a_deployment_that_is_too_large_for_etcd_is_reported(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    def variables(count: int) -> Body:
        named = [{"name": f"A_VARIABLE_WITH_A_LONG_NAME_{number:05d}", "value": "v" * 40} for number in range(count)]
        return {"podTemplate": {"spec": {"containers": [{"name": "engine", "env": named}]}}}

    # the model itself can be stored
    scene.apply_model(serving={"accelerator": "cpu", **variables(12500)}, rollout={"minReadySeconds": 0})
    refused = scene.wait_condition("Degraded", "WriteRefused", seconds=120)
    assert "request is too large" in refused["message"]
    scene.patch_serving(variables(2))
    scene.wait_current("Ready", seconds=120)
