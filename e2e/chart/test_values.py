"""Every value of the chart does something, does the same with either helm, and is refused when it is misspelt."""

import functools
import json
import re
from typing import Any

import pytest
import yaml

from encoder_node import targets
from encoder_operator import naming
from encoder_operator.api.v1alpha1 import Resources
from encoder_operator.manager.settings import Defaults, Images, Settings, Updates
from encoder_operator.validation import checks
from encoder_platform import chart, chart_reference
from encoder_platform.chart import Body, Helm, HelmError

RESOURCES = {"requests": {"cpu": "77m"}}
IMAGE = {"repository": "elsewhere/image"}
# each value with another one than its default, and the values without which it would have nothing to say
OTHER: dict[str, tuple[Any, Body]] = {
    "imageRegistry": ("images.example.org/team", {}),
    "nameOverride": ("vectors", {}),
    "extraEnv": ([{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}], {}),
    "image.repository": ("elsewhere/operator", {}),
    "image.tag": ("other", {}),
    "image.digest": ("sha256:" + "1" * 64, {}),
    "imagePullPolicy": ("Always", {}),
    "imagePullSecrets": ([{"name": "registry"}], {}),
    "engines.cpu": ({"sentence_transformer": IMAGE}, {}),
    "engines.cuda": ({"sentence_transformer": IMAGE}, {}),
    "preps": ({"sentence_transformer": IMAGE}, {}),
    "watch.namespaces": (["team-a", "team-b"], {}),
    "watch.namespaceSelector": ({"matchLabels": {"encoders": "enabled"}}, {}),
    "replicas": (3, {}),
    "leaderElection.enabled": (True, {"replicas": 1}),
    "leaderElection.leaseSeconds": (30, {"replicas": 2}),
    "podDisruptionBudget.enabled": (False, {"replicas": 2}),
    "settings.maxPreps": (9, {}),
    "settings.maxPrepsPerNamespace": (3, {}),
    "settings.prepStallSeconds": (9, {}),
    "settings.allowTrustRemoteCode": (True, {}),
    "tenancy.allowCustomImages": (False, {}),
    "tenancy.allowPodTemplate": (False, {}),
    "tenancy.allowThresholdOverrides": (False, {}),
    "tenancy.weakestParityMode": ("Enforce", {}),
    "tenancy.prepServiceAccounts": (["reader"], {}),
    "defaults.proxy.http": ("http://proxy:3128", {}),
    "defaults.proxy.https": ("http://proxy:3128", {}),
    "defaults.proxy.noProxy": (".svc", {}),
    "defaults.caConfigMap.name": ("company-ca", {}),
    "defaults.caConfigMap.key": ("bundle.pem", {}),
    "defaults.hubEndpoint": ("https://hub.example.org", {}),
    "defaults.tokenSecret.name": ("hub", {}),
    "defaults.tokenSecret.key": ("password", {}),
    "defaults.storageClassName": ("fast", {}),
    "platform.assignsUsers": (True, {}),
    "updates.window.days": (["Sat"], {}),
    "updates.window.start": ("02:00", {"updates": {"window": {"start": "01:00", "end": "06:00"}}}),
    "updates.window.end": ("05:00", {"updates": {"window": {"start": "01:00", "end": "06:00"}}}),
    "updates.maxAtOnce": (9, {}),
    "settings.prepResources": (RESOURCES, {}),
    "settings.servingResources": (RESOURCES, {}),
    "settings.parityResources": (RESOURCES, {}),
    "settings.concurrency": (3, {}),
    "settings.resyncSeconds": (77, {}),
    "settings.logLevel": ("debug", {}),
    "crds.install": (False, {}),
    "crds.keep": (False, {}),
    "gatePolicy.enabled": (False, {}),
    "gatePolicy.trustedControllers": (["system:serviceaccount:kueue-system:kueue"], {}),
    "gatePolicy.failurePolicy": ("Ignore", {}),
    "serviceAccount.create": (False, {"serviceAccount": {"name": "mine"}}),
    "serviceAccount.name": ("mine", {}),
    "serviceAccount.annotations": ({"a": "b"}, {}),
    "rbac.aggregate": (False, {}),
    "resources": (RESOURCES, {}),
    "podAnnotations": ({"a": "b"}, {}),
    "podLabels": ({"a": "b"}, {}),
    "nodeSelector": ({"a": "b"}, {}),
    "tolerations": ([{"operator": "Exists"}], {}),
    "affinity": ({"nodeAffinity": {}}, {}),
    "topologySpreadConstraints": (
        [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}],
        {},
    ),
    "priorityClassName": ("important", {}),
    "networkPolicy.enabled": (True, {}),
    "networkPolicy.apiServerPorts": ([16443], {"networkPolicy": {"enabled": True}}),
    "networkPolicy.metricsFrom": ([{"podSelector": {}}], {"networkPolicy": {"enabled": True}}),
    "artifactCollection.enabled": (True, {}),
    "artifactCollection.schedule": ("@daily", {"artifactCollection": {"enabled": True}}),
    "artifactCollection.resources": (RESOURCES, {"artifactCollection": {"enabled": True}}),
    "test.namespace": ("team-a", {}),
    "test.model": ({"plugin": "sentence_transformer"}, {}),
    "test.timeoutSeconds": (77, {}),
    **{f"monitoring.{name}.enabled": (True, {}) for name in ("podMonitor", "serviceMonitor", "servingPodMonitor")},
    **{
        f"monitoring.{name}.{key}": (other, {"monitoring": {name: {"enabled": True}}})
        for name in ("podMonitor", "serviceMonitor", "servingPodMonitor")
        for key, other in (("interval", "77s"), ("labels", {"a": "b"}))
    },
    "monitoring.alerts.enabled": (True, {}),
    "monitoring.alerts.labels": ({"a": "b"}, {"monitoring": {"alerts": {"enabled": True}}}),
    "monitoring.modelConditions.maxModels": (9, {}),
    "monitoring.alerts.runbookUrl": ("https://runbooks.example.org", {"monitoring": {"alerts": {"enabled": True}}}),
    "monitoring.alerts.alertLabels": ({"a": "b"}, {"monitoring": {"alerts": {"enabled": True}}}),
    "monitoring.dashboard.enabled": (True, {}),
    "monitoring.dashboard.labels": ({"a": "b"}, {"monitoring": {"dashboard": {"enabled": True}}}),
    "monitoring.dashboard.annotations": ({"a": "b"}, {"monitoring": {"dashboard": {"enabled": True}}}),
}


def nested(path: str, value: Any) -> Body:
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def merged(one: Body, other: Body) -> Body:
    found = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return found


@functools.cache
def rendered(helm: Helm, values: str) -> list[Body]:
    return helm.render(json.loads(values))


def test_each_value_is_in_the_table_above() -> None:
    described = chart_reference.described((chart.CHART / "values.yaml").read_text())
    # what Helm passes on to every part of a larger chart, and what only decides whether anything is rendered
    assert {value.path for value in described} - {"global", "localImages"} == set(OTHER)


@pytest.mark.parametrize("path", sorted(OTHER))
def test_a_value_is_used(helm: Helm, path: str) -> None:
    value, context = OTHER[path]
    # the CustomResourceDefinition is most of the text, and has two values of its own
    context = merged(context, nested("crds.install", path.startswith("crds.")))
    without = rendered(helm, json.dumps(context))
    with_it = helm.render(merged(context, nested(path, value)))
    assert with_it != without
    assert all(body["metadata"]["name"] for body in with_it)


SELECTOR: Body = {
    "matchLabels": {"encoders": "enabled"},
    "matchExpressions": [
        {"key": "team.example.org/tier", "operator": "In", "values": ["search", ""]},
        {"key": "paused", "operator": "DoesNotExist"},
    ],
}
ALL: Body = {
    "replicas": 2,
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "artifactCollection": {"enabled": True},
    # words that mean something to YAML
    "test": {"model": {"plugin": "sentence_transformer", "serving": {"env": [{"name": "A", "value": 'b: c #d "e"'}]}}},
    "monitoring": {
        name: {"enabled": True} for name in ("podMonitor", "serviceMonitor", "servingPodMonitor", "alerts", "dashboard")
    },
}


@pytest.mark.parametrize(
    "values",
    [
        {},
        ALL,
        {**ALL, "watch": {"namespaces": ["team-a"]}},
        {**ALL, "watch": {"namespaceSelector": SELECTOR}, "test": {"namespace": "team-a"}},
    ],
    ids=["default", "all", "some", "selected"],
)
def test_both_helms_render_the_same(values: Body) -> None:
    def sorted_by_name(name: str) -> list[Body]:
        found = chart.helm(name).render(values)
        return sorted(
            found, key=lambda body: (body["kind"], body["metadata"]["name"], body["metadata"].get("namespace"))
        )

    new, old = (sorted_by_name(name) for name in chart.VERSIONS)
    assert new == old


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"crds": {"enabled": True}}, "enabled"),
        ({"setings": {}}, "setings"),
        # a heading under which every line is a comment: helm takes the defaults of the section away
        *(({name: None}, f"'?{name}'?( is required)?$") for name in ("watch", "tenancy", "monitoring", "gatePolicy")),
        ({"monitoring": {"alerts": None}}, "monitoring.*alerts"),
        # neither may be switched off by an empty value
        ({"gatePolicy": {"enabled": None}}, "gatePolicy.*enabled"),
        ({"crds": {"keep": None}}, "crds.*keep"),
        ({"settings": {"logLevel": "loud"}}, "logLevel"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is required"),
        ({"engines": {"cpu": {"sentence_transfomer": IMAGE}}}, "unknown plugin"),
        ({"extraEnv": [{"name": "ENCODER_IMAGES", "value": "{}"}]}, "extraEnv"),
        ({"extraEnv": [{"name": "MALLOC_MMAP_THRESHOLD_", "value": "1"}]}, "extraEnv"),
        ({"extraEnv": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "extraEnv has A twice"),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "app.kubernetes.io/name"),
        ({"podLabels": {"team": "a b"}}, "podLabels"),
        ({"localImages": False}, "imageRegistry is empty: set it to the registry"),
        ({"imageRegistry": "https://x/"}, "https://x/encoder-operator/.* which has no scheme: set imageRegistry"),
        ({"image": {"repository": "oci://x/y"}}, "oci://x/y is not the name of an image"),
        ({"settings": {"servingResources": {"limits": {"memory": "2 GB"}}}}, "servingResources"),
        ({"updates": {"window": {"start": "02:00"}}}, "updates.window: set both start and end"),
        ({"updates": {"window": {"start": "02:00", "end": "02:00"}}}, "updates.window: start and end must differ"),
        ({"watch": {"namespaces": ["team-a"], "namespaceSelector": SELECTOR}}, "exclude each other"),
        ({"watch": {"namespaceSelector": {"matchLabel": {"a": "b"}}}}, "matchLabel"),
        ({"watch": {"namespaceSelector": {"matchLabels": {"a b": "c"}}}}, "a b"),
        ({"watch": {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}}, "operator"),
        ({"watch": {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}, "values"),
        (
            {"watch": {"namespaceSelector": SELECTOR}, "test": {"model": {"plugin": "sentence_transformer"}}},
            "test.namespace is empty",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_name(either_helm: Helm, values: Body, words: str) -> None:
    with pytest.raises(HelmError, match=words):
        either_helm.render(values)


def environment(objects: list[Body]) -> dict[str, str]:
    """Return the environment of the operator as its container has it: a variable without a value is empty."""
    (container,) = chart.find(objects, "Deployment", chart.RELEASE)["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value") or "" for entry in container["env"]}


def test_a_value_that_is_null_is_none(either_helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    nulls: Body = {
        "engines": {"cpu": None},
        "preps": None,
        "watch": {"namespaces": None},
        "settings": {
            "maxPreps": None,
            "prepResources": None,
            "servingResources": {"requests": {"cpu": 0.5, "memory": None}},
        },
        "tenancy": {"prepServiceAccounts": None},
        "gatePolicy": {"trustedControllers": None},
        "defaults": None,
        "updates": {"window": None},
    }
    for name, value in environment(either_helm.render(nulls)).items():
        monkeypatch.setenv(name, value)
    found = Settings()
    assert (found.max_preps, found.namespaces, found.prep_service_accounts) == (4, [], [])
    assert (found.defaults, found.updates) == (Defaults(), Updates())
    assert (found.prep_resources, found.serving_resources) == (Resources(), Resources(requests={"cpu": "0.5"}))


def test_a_large_number_is_a_number(either_helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    # Helm reads every number of a file as one with a fraction, and prints this one as 1e+06
    million = 1_000_000
    settings = {
        "maxPreps": million,
        "maxPrepsPerNamespace": million,
        "prepStallSeconds": million,
        "concurrency": million,
    }
    values: Body = {
        "settings": settings,
        "updates": {"maxAtOnce": million},
        "monitoring": {"modelConditions": {"maxModels": million}},
    }
    for name, value in environment(either_helm.render(values)).items():
        monkeypatch.setenv(name, value)
    found = Settings()
    assert {
        found.max_preps,
        found.max_preps_per_namespace,
        found.prep_stall_seconds,
        found.concurrency,
        found.updates.max_at_once,
        found.condition_metric_max_models,
    } == {million}


LONGEST = "a-release-whose-name-is-as-long-as-helm-takes-it.0000"


@pytest.mark.parametrize("release", ["42", "1e3", "true", "4.2", LONGEST])
def test_a_release_may_have_any_name_that_helm_takes(either_helm: Helm, release: str) -> None:
    text = either_helm.run(
        "template", release, str(chart.CHART), "--namespace", "7", "--kube-version", "1.36.3", values=ALL
    )
    objects = [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]
    for found in objects:
        assert found["metadata"].get("labels", {}).get("app.kubernetes.io/instance", "") in (release, "")
        assert found["metadata"].get("namespace", "7") == "7"
        name, kind = found["metadata"]["name"], found["kind"]
        assert re.fullmatch(naming.DNS_SUBDOMAIN, name)
        # what the API server requires of these names beyond that
        assert kind != "CronJob" or len(name) <= 52
        assert kind != "Service" or re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)
    deployment = next(found for found in objects if found["kind"] == "Deployment")
    assert deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == release
    (name,) = [
        argument.removeprefix("--name=")
        for found in objects
        if found["kind"] == "Pod"
        for argument in found["spec"]["containers"][0]["args"]
        if argument.startswith("--name=")
    ]
    checks.check_name(name)


def test_names_of_digits_stay_names(either_helm: Helm) -> None:
    objects = either_helm.render({**ALL, "serviceAccount": {"name": "42"}, "priorityClassName": "42"})
    assert chart.find(objects, "ServiceAccount", "42")
    pods = [found["spec"]["template"]["spec"] for found in objects if found["kind"] == "Deployment"]
    pods += [
        found["spec"]["jobTemplate"]["spec"]["template"]["spec"] for found in objects if found["kind"] == "CronJob"
    ]
    assert [(pod["serviceAccountName"], pod.get("priorityClassName")) for pod in pods] == [("42", "42"), ("42", None)]
    subjects = [subject["name"] for found in objects for subject in found.get("subjects", ())]
    assert set(map(type, subjects)) == {str}


def test_the_pod_of_the_test_runs_where_the_operator_may(helm: Helm) -> None:
    values: Body = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "extraEnv": [{"name": "A", "value": "b"}],
    }
    spec = chart.find(helm.render(values), "Pod", "encoder-operator-test")["spec"]
    assert (spec["nodeSelector"], spec["tolerations"]) == (values["nodeSelector"], values["tolerations"])
    assert values["extraEnv"][0] in spec["containers"][0]["env"]


def test_lint_finds_nothing(either_helm: Helm) -> None:
    output = either_helm.run("lint", "--strict", "--kube-version", "1.36.3", str(chart.CHART))
    assert "0 chart(s) failed" in output
    assert "[WARNING]" not in output


def test_an_image_is_where_the_values_place_it(helm: Helm) -> None:
    digest = "sha256:" + "2" * 64
    objects = helm.render(
        {
            "imageRegistry": "images.example.org/team/",
            "image": {"digest": digest},
            "engines": {"cpu": {"sentence_transformer": {"repository": "own.example.org/engine", "tag": "7"}}},
        }
    )
    (container,) = chart.find(objects, "Deployment", "encoder-operator")["spec"]["template"]["spec"]["containers"]
    images = next(entry["value"] for entry in container["env"] if entry["name"] == "ENCODER_IMAGES")
    assert container["image"] == f"images.example.org/team/encoder-operator/operator@{digest}"
    assert '"sentence_transformer":"own.example.org/engine:7"' in images
    assert "images.example.org/team/encoder-operator/prep-sentence_transformer:" in images


def test_an_image_that_nobody_names_is_one_that_is_built_here(helm: Helm) -> None:
    (container,) = chart.find(helm.render(), "Deployment", "encoder-operator")["spec"]["template"]["spec"]["containers"]
    images_json = next(entry["value"] for entry in container["env"] if entry["name"] == "ENCODER_IMAGES")
    images = Images.model_validate_json(images_json)
    assert container["image"] == images.operator
    named = [images.operator, *images.prep.values()]
    named += [image for engines in images.engine.values() for image in engines.values()]
    built = [target.reference for target in targets.current() if target.name != targets.TESTS_ONLY]
    assert sorted(named) == sorted(built)


def test_a_registry_is_enough_where_no_node_has_the_images(helm: Helm) -> None:
    assert helm.render({"localImages": False, "imageRegistry": "images.example.org/team"})


def test_another_name_is_in_names_and_selectors_but_not_in_the_image(helm: Helm) -> None:
    objects = helm.render({"nameOverride": "vectors", "extraEnv": [{"name": "A", "value": "b"}], **ALL})
    name = f"{chart.RELEASE}-vectors"
    deployment = chart.find(objects, "Deployment", name)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    labels = {"app.kubernetes.io/name": "vectors", "app.kubernetes.io/instance": chart.RELEASE}
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert chart.find(objects, "PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"] == labels
    assert container["image"].startswith("encoder-operator/operator:")
    collector = chart.find(objects, "CronJob", f"{name}-gc")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for environment in (container["env"], collector["containers"][0]["env"]):
        names = [entry["name"] for entry in environment]
        assert "A" in names
        assert len(set(names)) == len(names)


def test_the_upgrade_to_this_version_is_described() -> None:
    versions = [
        chart.PREVIOUS.stem.rpartition("-")[2],
        yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["version"],
    ]
    page = (chart.ROOT / "docs" / "operations.md").read_text()
    assert f"\n### From {versions[0]} to {versions[1]}\n" in page


def test_the_model_of_the_test_reaches_it_word_for_word(helm: Helm) -> None:
    (container,) = chart.find(helm.render(ALL), "Pod", "encoder-operator-test")["spec"]["containers"]
    (spec,) = [found.removeprefix("--spec=") for found in container["args"] if found.startswith("--spec=")]
    assert json.loads(spec) == ALL["test"]["model"]


@pytest.mark.parametrize(("assigns", "fixed"), [(True, False), (False, True), ("auto", True)])
def test_no_pod_names_a_user_where_the_platform_assigns_one(helm: Helm, assigns: object, fixed: bool) -> None:
    # the cluster that `helm template` assumes is not OpenShift
    objects = helm.render({**ALL, "platform": {"assignsUsers": assigns}})
    text = json.dumps(objects)
    for name in ("runAsUser", "runAsGroup", "fsGroup"):
        assert (f'"{name}": 10001' in text) is fixed
    assert '"runAsNonRoot": true' in text
    (container,) = chart.find(objects, "Deployment", "encoder-operator")["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["ENCODER_FIXED_USER"] == str(fixed).lower()


def test_openshift_is_recognized_by_its_api(either_helm: Helm) -> None:
    cluster = ("--kube-version", "1.36.3", "--api-versions", "security.openshift.io/v1")
    text = either_helm.run("template", "x", str(chart.CHART), *cluster)
    assert "runAsNonRoot: true" in text
    assert "runAsUser: 10001" not in text


def test_defaults_reach_the_operator_as_it_reads_them(helm: Helm) -> None:
    wanted = {"proxy": {"https": "http://proxy:3128"}, "tokenSecret": {"name": "hub"}, "storageClassName": "fast"}
    updates = {"window": {"days": ["Sat"], "start": "22:00", "end": "04:00"}, "maxAtOnce": 3}
    objects = helm.render({"defaults": wanted, "updates": updates})
    (container,) = chart.find(objects, "Deployment", "encoder-operator")["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    defaults = Defaults.model_validate_json(environment["ENCODER_DEFAULTS"])
    assert (defaults.proxy.https, defaults.token_secret.name, defaults.token_secret.key) == (
        "http://proxy:3128", "hub", "token"
    )  # fmt: skip
    assert defaults.storage_class_name == "fast"
    read = Updates.model_validate_json(environment["ENCODER_UPDATES"])
    assert (read.window.days, read.window.start, read.window.end, read.max_at_once) == (["Sat"], "22:00", "04:00", 3)


def test_the_values_in_the_documentation_are_values(helm: Helm) -> None:
    page = (chart.ROOT / "docs" / "install.md").read_text()
    examples = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert len(examples) == 3
    for values in examples:
        assert helm.render(values) != helm.render()
