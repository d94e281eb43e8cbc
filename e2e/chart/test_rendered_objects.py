"""What the chart becomes is what Kubernetes knows, in the oldest and the newest version, and no more than it needs."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from encoder_node import module_sources, programs
from encoder_node.settings import load
from encoder_operator.api.v1alpha1 import LabelSelector
from encoder_operator.cli import doctor
from encoder_operator.manager.settings import Settings
from encoder_platform import chart, openapi
from encoder_platform.chart import Body, Helm

EVERYTHING: Body = {
    "replicas": 2,
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "artifactCollection": {"enabled": True},
    "imagePullSecrets": [{"name": "registry"}],
    "affinity": {"podAntiAffinity": {}},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "nodeSelector": {"a": "b"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "priorityClassName": "important",
    "serviceAccount": {"annotations": {"a": "b"}},
    "test": {"model": {"plugin": "sentence_transformer"}},
    "monitoring": {
        name: {"enabled": True, "labels": {"a": "b"}}
        for name in ("podMonitor", "serviceMonitor", "servingPodMonitor", "alerts", "dashboard")
    },
}
SELECTOR: Body = {
    "matchLabels": {"encoders": "enabled"},
    "matchExpressions": [{"key": "tier", "operator": "In", "values": ["search", "ads"]}],
}
SHAPES: dict[str, Body] = {
    "default": {},
    "everything": EVERYTHING,
    "some namespaces": {**EVERYTHING, "watch": {"namespaces": ["team-a", "team-b"]}},
    "selected namespaces": {
        **EVERYTHING,
        "test": {**EVERYTHING["test"], "namespace": "team-a"},
        "watch": {"namespaceSelector": SELECTOR},
    },
    "nothing": {
        "crds": {"install": False},
        "gatePolicy": {"enabled": False},
        "rbac": {"aggregate": False},
        "serviceAccount": {"create": False, "name": "mine"},
        "watch": {"namespaces": ["team-a"]},
    },
}


def swagger(version: str) -> Path:
    if version == "oldest":
        folder = module_sources.folder(module_sources.OLDEST_KUBERNETES)
    else:
        folder = programs.Programs(load()).source_of_kubernetes()
    return folder / "api" / "openapi-spec" / "swagger.json"


@pytest.fixture(scope="module", params=["oldest", "newest"])
def schemas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    foreign = module_sources.folder(module_sources.PROMETHEUS_OPERATOR) / "example" / "prometheus-operator-crd"
    crds = [
        foreign / f"monitoring.coreos.com_{kind}.yaml" for kind in ("podmonitors", "prometheusrules", "servicemonitors")
    ]
    openapi.write(folder, swagger(request.param), crds)
    return folder


def refused(objects: list[Body], schemas: Path) -> list[str]:
    command = [str(programs.Programs(load()).folder / "kubeconform"), "-output", "json"]
    command += ["-schema-location", f"{schemas}/{openapi.LOCATION}"]
    text = yaml.safe_dump_all(objects)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    return [f"{found['kind']} {found['name']}: {found['msg']}" for found in json.loads(done.stdout)["resources"]]


@pytest.mark.parametrize("shape", SHAPES)
def test_kubernetes_knows_every_object_and_every_field(helm: Helm, schemas: Path, shape: str) -> None:
    assert refused(helm.render(SHAPES[shape]), schemas) == []


def test_a_wrong_object_would_be_found(helm: Helm, schemas: Path) -> None:
    objects = helm.render(EVERYTHING)
    chart.find(objects, "Deployment", "encoder-operator")["spec"]["template"]["spec"]["tolerationz"] = []
    chart.find(objects, "PodMonitor", "encoder-operator")["spec"]["selektor"] = {}
    chart.find(objects, "NetworkPolicy", "encoder-operator")["spec"]["policyTypes"] = "Egress"
    chart.find(objects, "PodDisruptionBudget", "encoder-operator")["apiVersion"] = "policy/v1beta1"
    kinds = sorted(found.partition(" ")[0] for found in refused(objects, schemas))
    assert kinds == ["Deployment", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor"]


def test_the_charts_kube_version_is_the_oldest_tested_one() -> None:
    oldest = module_sources.OLDEST_KUBERNETES.version.removeprefix("v").rpartition(".")[0]
    assert yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={oldest}.0-0"


def rules(objects: list[Body]) -> list[tuple[str, Any]]:
    return [
        (body["kind"], rule) for body in objects if body["kind"] in ("Role", "ClusterRole") for rule in body["rules"]
    ]


def test_in_some_namespaces_the_operator_has_no_right_outside_of_them(helm: Helm) -> None:
    objects = helm.render(SHAPES["some namespaces"])
    assert not [body for body in objects if body["kind"] == "ClusterRoleBinding"]
    bound = {
        (body["metadata"]["namespace"], body["roleRef"]["name"])
        for body in objects
        if body["kind"] == "RoleBinding" and body["subjects"][0]["name"] == "encoder-operator"
    }
    assert bound == {
        ("team-a", "encoder-operator"),
        ("team-b", "encoder-operator"),
        ("encoder-operator", "encoder-operator-events"),
        ("encoder-operator", "encoder-operator-lease"),
    }
    assert not [rule for kind, rule in rules(objects) if "nodes" in rule["resources"]]
    for body in objects:
        if body["kind"] == "ValidatingAdmissionPolicyBinding":
            (expression,) = body["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
            assert expression["values"] == ["team-a", "team-b"]


def test_operator_and_policies_select_the_same_namespaces(helm: Helm) -> None:
    objects = helm.render(SHAPES["selected namespaces"])
    selectors = [
        body["spec"]["matchResources"] for body in objects if body["kind"] == "ValidatingAdmissionPolicyBinding"
    ]
    assert selectors == [{"namespaceSelector": SELECTOR}] * 3
    operator = chart.find(objects, "Deployment", "encoder-operator")["spec"]["template"]["spec"]
    collector = chart.find(objects, "CronJob", "encoder-operator-gc")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for pod in (operator, collector):
        environment = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        found = LabelSelector.model_validate_json(environment["ENCODER_NAMESPACE_SELECTOR"])
        assert found.model_dump(by_alias=True, exclude_defaults=True) == SELECTOR
        assert json.loads(environment["ENCODER_NAMESPACES"]) == []
    # without one, the policies match everywhere
    for body in helm.render():
        if body["kind"] == "ValidatingAdmissionPolicyBinding":
            assert "matchResources" not in body["spec"]


@pytest.mark.complaint(22)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_role_has_wildcards_or_reads_secrets_or_enters_pods(helm: Helm, shape: str) -> None:
    for _, rule in rules(helm.render(SHAPES[shape])):
        for part in ("apiGroups", "resources", "verbs"):
            assert "*" not in rule[part]
        assert not {"secrets", "pods/exec", "pods/attach", "pods/portforward"} & set(rule["resources"])
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def granted(role: Body) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_operators_role_matches_the_permissions_that_doctor_checks(helm: Helm) -> None:
    required = {(group, resource, verb) for group, resource, verbs in doctor.PERMISSIONS for verb in verbs}
    required |= {(doctor.ROUTES[0], doctor.ROUTES[1], verb) for verb in doctor.ROUTES[2]}
    # where an admission plugin wants it for owner references; there is no access review for it
    required |= {("encoders.dev", "encodermodels/finalizers", "update")}
    some = helm.render(SHAPES["some namespaces"])
    assert granted(chart.find(some, "Role", "encoder-operator", "team-a")) == required
    assert granted(chart.find(helm.render(), "ClusterRole", "encoder-operator")) == required | {("", "nodes", "get")}
    selected = chart.find(helm.render(SHAPES["selected namespaces"]), "ClusterRole", "encoder-operator")
    namespaces = {(doctor.NAMESPACES[0], doctor.NAMESPACES[1], verb) for verb in doctor.NAMESPACES[2]}
    assert granted(selected) == required | {("", "nodes", "get")} | namespaces
    leases = {(doctor.LEASES[0], doctor.LEASES[1], verb) for verb in doctor.LEASES[2]}
    assert granted(chart.find(some, "Role", "encoder-operator-lease")) == leases


def test_without_cluster_rights_nothing_of_the_whole_cluster_is_made(helm: Helm) -> None:
    objects = helm.render(SHAPES["nothing"])
    assert {body["kind"] for body in objects if "namespace" not in body["metadata"]} == set()


def test_a_lease_comes_with_the_second_operator(helm: Helm) -> None:
    def settings_of(values: Body) -> dict[str, str]:
        deployment = chart.find(helm.render(values), "Deployment", "encoder-operator")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        strategy = {"STRATEGY": deployment["spec"]["strategy"]["type"]}
        return strategy | {entry["name"]: entry["value"] for entry in container["env"]}

    one, two = settings_of({"replicas": 1}), settings_of({})
    assert one["STRATEGY"] == "Recreate"
    assert "ENCODER_LEASE" not in one
    assert two["STRATEGY"] == "RollingUpdate"
    assert two["ENCODER_LEASE"] == "true"
    assert two["ENCODER_LEASE_NAMESPACE"] == chart.NAMESPACE
    assert settings_of({"replicas": 1, "leaderElection": {"enabled": True}})["ENCODER_LEASE"] == "true"


def serving_template() -> Body:
    """Return the pod template that the operator makes for the smallest spec of a user."""
    golden = chart.ROOT / "operator" / "encoder_operator" / "resources" / "tests" / "golden" / "cpu.yaml"
    children = yaml.safe_load_all(golden.read_text())
    template: Body = next(body["spec"]["template"] for body in children if body["kind"] == "Deployment")
    return template


def ports(template: Body) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in template["spec"]["containers"]
        for port in container.get("ports", [])
    }


def test_what_is_scraped_is_what_pods_offer(helm: Helm) -> None:
    objects = helm.render(EVERYTHING)
    operator = chart.find(objects, "Deployment", "encoder-operator")["spec"]["template"]
    serving = serving_template()
    for name, template in (("encoder-operator", operator), ("encoder-operator-serving", serving)):
        monitor = chart.find(objects, "PodMonitor", name)["spec"]
        labels = template["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["podMetricsEndpoints"]
        assert endpoint["port"] in ports(template)
        assert endpoint["path"] == "/metrics"
        # Prometheus spells a pod's labels so
        spelled = {"__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label) for label in labels}
        assert {source for rule in endpoint.get("relabelings", []) for source in rule["sourceLabels"]} <= spelled
    relabelled = [rule["targetLabel"] for rule in endpoint["relabelings"]]
    assert relabelled == ["model", "revision"]
    # serving pods are anywhere, and the operator's are here
    assert chart.find(objects, "PodMonitor", "encoder-operator-serving")["spec"]["namespaceSelector"] == {"any": True}
    # where the operator answers, and where a probe and a scrape send requests
    assert ports(operator)["probes"] == Settings().port
    (engine,) = serving["spec"]["containers"]
    assert engine["args"][engine["args"].index("--port") + 1] == str(ports(serving)["http"])


def test_a_service_monitor_finds_the_operators_through_their_service(helm: Helm) -> None:
    objects = helm.render(EVERYTHING)
    operator = chart.find(objects, "Deployment", "encoder-operator")["spec"]["template"]
    service = chart.find(objects, "Service", "encoder-operator-metrics")
    monitor = chart.find(objects, "ServiceMonitor", "encoder-operator")["spec"]
    assert service["spec"]["selector"].items() <= operator["metadata"]["labels"].items()
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in ports(operator)
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [port["name"]]
    selected = [
        body["metadata"]["name"]
        for body in objects
        if body["kind"] == "Service"
        and monitor["selector"]["matchLabels"].items() <= body["metadata"].get("labels", {}).items()
    ]
    assert selected == ["encoder-operator-metrics"]


@pytest.mark.complaint(23)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_chart_installs_no_webhook(helm: Helm, shape: str) -> None:
    kinds = {body["kind"] for body in helm.render(SHAPES[shape])}
    assert kinds
    assert not [kind for kind in kinds if kind.endswith("WebhookConfiguration") or kind == "APIService"]
    (definition,) = [body for body in helm.render({}) if body["kind"] == "CustomResourceDefinition"]
    assert "conversion" not in definition["spec"]


def test_the_dashboard_is_one(helm: Helm) -> None:
    board = json.loads(
        chart.find(helm.render(EVERYTHING), "ConfigMap", "encoder-operator-dashboard")["data"]["encoder-operator.json"]
    )
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) > 10
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(target["expr"] for panel in panels for target in panel["targets"])
