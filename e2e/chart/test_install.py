"""The life of a release on a real API server: install, upgrade from the version before, roll back, uninstall. No kubelet is needed."""

import json
from typing import Any

import pytest
import yaml

from encoder_node import module_sources
from encoder_node.waiting import wait_for
from encoder_operator import naming
from encoder_platform import chart, manifests
from encoder_platform.chart import Body, Helm, HelmError, OnCluster
from encoder_platform.kube import DEPLOYMENT, MODELS, POD, Kube
from encoder_platform.plane import CRD, established

CRD_NAME = "encodermodels.encoders.dev"
# the fixture `cluster` makes it
TEAM = "team-a"
ACCOUNT = f"system:serviceaccount:{chart.NAMESPACE}:encoder-operator"
# what the version before accepted: it has none of the newer fields
MODEL: Body = {
    "apiVersion": MODELS[0],
    "kind": "EncoderModel",
    "metadata": {"name": "minilm", "namespace": TEAM},
    "spec": {
        "plugin": "sentence_transformer",
        "source": {"huggingFace": {"repo": "org/name", "revision": "1" * 40}},
        "storage": {"claimName": "artifacts"},
        "serving": {"accelerator": "cpu", "replicas": 2},
    },
}


def model(kube: Kube) -> Body:
    found = kube.run("-n", TEAM, "get", "em", "minilm", "-o", "json")
    body: Body = json.loads(found)
    return {"uid": body["metadata"]["uid"], "generation": body["metadata"]["generation"], "status": body["status"]}


def pods(kube: Kube) -> dict[str, Any]:
    found = json.loads(kube.run("-n", TEAM, "get", "deploy,rs,pod", "-o", "json"))
    return {
        f"{body['kind']}/{body['metadata']['name']}": (body["metadata"]["uid"], body["spec"]) for body in found["items"]
    }


def serve(kube: Kube) -> None:
    """Leave in the cluster what the version before has made of a model, pods included."""
    wait_for("the EncoderModel API", lambda: established(kube), seconds=30)
    labels = {"encoders.dev/model": "minilm", "encoders.dev/component": "serving"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "minilm", "namespace": TEAM, "labels": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "securityContext": manifests.RESTRICTED,
                    "containers": [{"name": "engine", "image": "e:1", "securityContext": manifests.LOCKED_CONTAINER}],
                },
            },
        },
    }
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(MODEL))
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(deployment))
    status = {"status": {"phase": "Serving", "observedGeneration": 1, "activeRevision": "0123456789"}}
    kube.run("-n", TEAM, "patch", "em", "minilm", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    wait_for("two pods", lambda: len(kube.all(POD, TEAM)) == 2, seconds=30)


def fields(kube: Kube) -> set[str]:
    definition = kube.get(CRD, CRD_NAME)
    assert definition is not None
    (version,) = definition["spec"]["versions"]
    return set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


@pytest.mark.complaint(25)
def test_models_and_pods_outlive_upgrade_rollback_and_uninstall(
    either_helm: Helm, cluster: OnCluster, kube: Kube
) -> None:
    helm = cluster(either_helm)
    helm.upgrade(chart.PREVIOUS, values={"settings": {"prepStallSeconds": 77}})
    serve(kube)
    before = model(kube), pods(kube)
    assert "rollout" not in fields(kube)

    helm.upgrade(chart.CHART, "--reset-then-reuse-values")
    assert (model(kube), pods(kube)) == before
    assert {"rollout", "network", "paused"} <= fields(kube)
    operator = kube.get(DEPLOYMENT, "encoder-operator", chart.NAMESPACE)
    assert operator is not None
    environment = {
        entry["name"]: entry["value"] for entry in operator["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    # what the administrator had set is still set, and what is new has its default
    assert environment["ENCODER_PREP_STALL_SECONDS"] == "77"
    assert environment["ENCODER_MAX_PREPS"] == "4"

    helm.run("rollback", chart.RELEASE, "1", "--namespace", chart.NAMESPACE)
    assert (model(kube), pods(kube)) == before
    assert "rollout" not in fields(kube)

    helm.upgrade(chart.CHART, "--reset-then-reuse-values")
    helm.run("uninstall", chart.RELEASE, "--namespace", chart.NAMESPACE)
    assert kube.get(DEPLOYMENT, "encoder-operator", chart.NAMESPACE) is None
    assert (model(kube), pods(kube)) == before

    helm.upgrade(chart.CHART)
    assert (model(kube), pods(kube)) == before


def test_a_release_of_another_name_takes_over_what_was_left(helm: Helm, cluster: OnCluster, kube: Kube) -> None:
    on_it = cluster(helm)
    on_it.upgrade(chart.CHART)
    serve(kube)
    before = model(kube)
    on_it.run("uninstall", chart.RELEASE, "--namespace", chart.NAMESPACE)
    other = ("upgrade", "--install", "other", str(chart.CHART), "--namespace", chart.NAMESPACE)
    with pytest.raises(HelmError, match="invalid ownership metadata"):
        on_it.run(*other)
    on_it.run(*other, "--take-ownership")
    assert model(kube) == before
    on_it.run("uninstall", "other", "--namespace", chart.NAMESPACE)


def test_without_keep_the_crd_is_deleted_with_the_release(helm: Helm, cluster: OnCluster, kube: Kube) -> None:
    on_it = cluster(helm)
    on_it.upgrade(chart.CHART, values={"crds": {"keep": False}})
    assert kube.get(CRD, CRD_NAME) is not None
    on_it.run("uninstall", chart.RELEASE, "--namespace", chart.NAMESPACE)
    wait_for("the definition gone", lambda: kube.get(CRD, CRD_NAME) is None, seconds=30)


def test_one_operator_becomes_two_and_one_again(helm: Helm, cluster: OnCluster, kube: Kube) -> None:
    on_it = cluster(helm)
    for replicas, strategy in ((1, "Recreate"), (2, "RollingUpdate"), (1, "Recreate")):
        on_it.upgrade(chart.CHART, values={"replicas": replicas})
        operator = kube.get(DEPLOYMENT, "encoder-operator", chart.NAMESPACE)
        assert operator is not None
        assert (operator["spec"]["replicas"], operator["spec"]["strategy"]["type"]) == (replicas, strategy)
        budget = kube.get(("policy/v1", "PodDisruptionBudget"), "encoder-operator", chart.NAMESPACE)
        assert (budget is not None) == (replicas > 1)


def test_a_release_with_a_misspelt_value_changes_nothing(helm: Helm, cluster: OnCluster, kube: Kube) -> None:
    on_it = cluster(helm)
    with pytest.raises(HelmError, match="replicaz"):
        on_it.upgrade(chart.CHART, values={"replicaz": 2})
    assert kube.get(CRD, CRD_NAME) is None


EVERYTHING: Body = {
    "replicas": 2,
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "artifactCollection": {"enabled": True},
    "test": {"model": MODEL["spec"]},
    "monitoring": {
        name: {"enabled": True} for name in ("podMonitor", "serviceMonitor", "servingPodMonitor", "alerts", "dashboard")
    },
}


@pytest.fixture(scope="session")
def prometheus_operator(kube: Kube) -> None:
    folder = module_sources.folder(module_sources.PROMETHEUS_OPERATOR) / "example" / "prometheus-operator-crd"
    for kind in ("podmonitors", "prometheusrules", "servicemonitors"):
        kube.run("apply", "--server-side", "-f", str(folder / f"monitoring.coreos.com_{kind}.yaml"))
    for kind in ("podmonitors", "prometheusrules", "servicemonitors"):
        name = f"{kind}.monitoring.coreos.com"
        wait_for(name, lambda name=name: established(kube, name), seconds=30)  # type: ignore[misc]


@pytest.mark.usefixtures("prometheus_operator")
@pytest.mark.parametrize("namespaces", [[], [TEAM, "team-b"]], ids=["all", "some"])
def test_the_api_server_accepts_everything_without_a_warning(
    helm: Helm, cluster: OnCluster, kube: Kube, namespaces: list[str]
) -> None:
    # a hook's pod wants its account to be there first; the next test but one has it
    objects = cluster(helm).render({**EVERYTHING, "watch": {"namespaces": namespaces}}, hooks=False)
    text = yaml.safe_dump_all(objects)
    kube.run("apply", "--dry-run=server", "--server-side", "--warnings-as-errors", "-f", "-", stdin=text)


def test_no_expression_of_a_policy_is_doubtful(helm: Helm, cluster: OnCluster, kube: Kube) -> None:
    cluster(helm).upgrade(chart.CHART)
    policies = [body["metadata"]["name"] for body in helm.render() if body["kind"] == "ValidatingAdmissionPolicy"]
    assert len(policies) == 3

    def checked(name: str) -> Body | None:
        policy = kube.get(("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"), name)
        assert policy is not None
        status: Body = policy.get("status") or {}
        return status if status.get("observedGeneration") == policy["metadata"]["generation"] else None

    for name in policies:
        status = wait_for(f"{name} type-checked", lambda name=name: checked(name), seconds=60)  # type: ignore[misc]
        assert not (status.get("typeChecking") or {}).get("expressionWarnings"), status


def test_every_pod_of_the_chart_may_run_where_only_restricted_ones_may(
    helm: Helm, cluster: OnCluster, kube: Kube
) -> None:
    cluster(helm).upgrade(chart.CHART)
    objects = helm.render(EVERYTHING)
    found = {
        "operator": chart.find(objects, "Deployment", "encoder-operator")["spec"]["template"]["spec"],
        "gc": chart.find(objects, "CronJob", "encoder-operator-gc")["spec"]["jobTemplate"]["spec"]["template"]["spec"],
        "test": chart.find(objects, "Pod", "encoder-operator-test")["spec"] | {"serviceAccountName": "default"},
    }
    for name, spec in found.items():
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": chart.NAMESPACE},
            "spec": spec,
        }
        kube.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    del spec["securityContext"]["runAsNonRoot"], spec["containers"][0]["securityContext"]["runAsNonRoot"]
    with pytest.raises(RuntimeError, match="violates PodSecurity"):
        kube.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


def may(kube: Kube, user: str, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
    arguments = ["-n", namespace, "auth", "can-i", verb, resource, f"--as={user}", f"--subresource={subresource}"]
    return kube.run(*arguments, check=False).splitlines()[:1] == ["yes"]


NEEDS = [
    ("list", "encodermodels.encoders.dev", ""),
    ("patch", "encodermodels.encoders.dev", "status"),
    ("patch", "deployments.apps", ""),
    ("create", "jobs.batch", ""),
    ("patch", "pods", "status"),
    ("get", "pods", "log"),
    ("create", "poddisruptionbudgets.policy", ""),
    ("create", "networkpolicies.networking.k8s.io", ""),
]
NEEDS_NOT = [
    ("get", "secrets", ""),
    ("list", "secrets", ""),
    ("list", "configmaps", ""),
    ("create", "pods", ""),
    ("create", "pods", "exec"),
    ("delete", "encodermodels.encoders.dev", ""),
    ("delete", "persistentvolumeclaims", ""),
    ("list", "nodes", ""),
    ("create", "rolebindings.rbac.authorization.k8s.io", ""),
]


@pytest.mark.parametrize("namespaces", [[], [TEAM]], ids=["all", "some"])
def test_the_operator_may_what_it_needs_and_nothing_else(
    helm: Helm, cluster: OnCluster, kube: Kube, namespaces: list[str]
) -> None:
    cluster(helm).upgrade(chart.CHART, values={"replicas": 2, "watch": {"namespaces": namespaces}})

    def known() -> bool:
        return may(kube, ACCOUNT, "list", "encodermodels.encoders.dev", TEAM)

    wait_for("the roles", known, seconds=30)
    assert [need for need in NEEDS if not may(kube, ACCOUNT, need[0], need[1], TEAM, need[2])] == []
    assert [need for need in NEEDS_NOT if may(kube, ACCOUNT, need[0], need[1], TEAM, need[2])] == []
    assert may(kube, ACCOUNT, "list", "jobs.batch", "team-b") is not bool(namespaces)
    assert may(kube, ACCOUNT, "get", "nodes", TEAM) is not bool(namespaces)
    assert may(kube, ACCOUNT, "create", "leases.coordination.k8s.io", chart.NAMESPACE)
    assert not may(kube, ACCOUNT, "create", "leases.coordination.k8s.io", TEAM)


def pod(name: str, component: str | None, image: str = "e:1") -> Body:
    labels = {"encoders.dev/component": component} if component else {}
    container = {"name": "c", "image": image, "securityContext": manifests.LOCKED_CONTAINER}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM, "labels": labels},
        "spec": {"securityContext": manifests.RESTRICTED, "containers": [container]},
    }


def workload(kind: str, name: str, component: str) -> Body:
    template = {key: pod(name, component)[key] for key in ("metadata", "spec")}
    template["metadata"] = {"labels": {"a": "b", **template["metadata"]["labels"]}}
    api, spec = {
        "Job": ("batch/v1", {"template": template}),
        "CronJob": ("batch/v1", {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}),
        "Deployment": ("apps/v1", {"selector": {"matchLabels": {"a": "b"}}, "template": template}),
        "ReplicaSet": ("apps/v1", {"selector": {"matchLabels": {"a": "b"}}, "template": template}),
    }[kind]
    if "Job" in kind:
        template["spec"]["restartPolicy"] = "Never"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": TEAM}, "spec": spec}


@pytest.mark.fault(
    "a tenant with the admin role forges a verdict or changes a verified pod",
    "`Forbidden`, and who is allowed to",
    "the admission policies reject it; gates and verdicts do not change",
)
def test_a_tenant_can_neither_make_what_decides_nor_change_what_was_verified(
    helm: Helm, cluster: OnCluster, kube: Kube
) -> None:
    cluster(helm).upgrade(chart.CHART)
    kube.run("-n", TEAM, "create", "rolebinding", "tenant", "--clusterrole=admin", "--user=tenant")
    kube.run(
        "-n", TEAM, "create", "role", "records", "--verb=create,update,patch", "--resource=controllerrevisions.apps"
    )

    def as_tenant(*arguments: str, body: Body | None = None) -> str:
        text = None if body is None else json.dumps(body)
        return kube.run("-n", TEAM, *arguments, "--as=tenant", stdin=text, check=False)

    kube.run("apply", "-f", "-", stdin=json.dumps(pod("verified", "serving")))
    probe = "--dry-run=server"
    wait_for(
        "the policies in effect",
        lambda: "belong to an EncoderModel" in as_tenant("create", probe, "-f", "-", body=pod("x", "parity")),
        seconds=60,
    )
    for kind in ("Job", "CronJob", "Deployment", "ReplicaSet"):
        for component in ("parity", "serving"):
            output = as_tenant("create", "-f", "-", body=workload(kind, "mine", component))
            assert "belong to an EncoderModel" in output, (kind, component, output)
    assert "belong to" in as_tenant("set", "image", "pod/verified", "c=e:2")
    assert "belong to" in as_tenant("label", "pod/verified", "encoders.dev/component-")
    assert "belong to" in as_tenant("annotate", "pod/verified", "encoders.dev/x=y")
    # without what is ours in it, everything is theirs to do
    assert "created" in as_tenant("create", "-f", "-", body=pod("free", None))
    assert "belong to" in as_tenant("label", "pod/free", "encoders.dev/component=serving")
    assert "labeled" in as_tenant("label", "pod/verified", "team=search")
    # what the admin role does not reach at all
    for verb in ("create", "update", "patch"):
        assert not may(kube, "tenant", verb, "controllerrevisions.apps", TEAM)
        assert not may(kube, "tenant", verb, "pods", TEAM, "status")
        assert not may(kube, "tenant", verb, "encodermodels.encoders.dev", TEAM, "status")
    assert may(kube, "tenant", "create", "encodermodels.encoders.dev", TEAM)
    # and where a user has been given it nevertheless
    kube.run("-n", TEAM, "create", "rolebinding", "records", "--role=records", "--user=tenant")
    record = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": "forged", "namespace": TEAM, "labels": {"encoders.dev/component": "verdict"}},
        "revision": 0,
        "data": {"result": "Passed"},
    }
    wait_for("the role", lambda: may(kube, "tenant", "create", "controllerrevisions.apps", TEAM), seconds=30)
    assert "belong to" in as_tenant("create", "-f", "-", body=record)


def test_nobody_execs_into_a_parity_pod(helm: Helm, cluster: OnCluster, kube: Kube) -> None:
    cluster(helm).upgrade(chart.CHART)
    kube.run("-n", TEAM, "create", "rolebinding", "tenant", "--clusterrole=admin", "--user=tenant")

    def pod_of(model_name: str, attempt: int) -> str:
        """Let the API server name a pod as it does for the Job controller."""
        body = pod("x", None)
        body["metadata"] = {
            "namespace": TEAM,
            "generateName": naming.parity_job(model_name, "0123456789", attempt) + "-",
        }
        return kube.run("create", "-f", "-", "-o", "jsonpath={.metadata.name}", stdin=json.dumps(body))

    def exec_into(pod_name: str) -> str:
        return kube.run("-n", TEAM, "exec", pod_name, "--as=tenant", "--", "sh", check=False)

    kube.run("apply", "-f", "-", stdin=json.dumps(pod("mine", None)))
    comparing = [pod_of(model_name, attempt) for model_name in ("minilm", "m" * 38, "m" * 40) for attempt in (1, 9999)]
    assert max(map(len, comparing)) == 63
    wait_for("the policy in effect", lambda: "belongs to a prep or parity Job" in exec_into(comparing[0]), seconds=60)
    assert [name for name in comparing if "belongs to a prep or parity Job" not in exec_into(name)] == []
    # there is no node to reach; the policy has let it pass
    assert "belongs to a prep or parity Job" not in exec_into("mine")
