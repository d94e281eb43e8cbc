"""What the chart installs and grants without any value."""

import json
import re
import textwrap

import yaml

from encoder_node.waiting import wait_for
from encoder_operator.api.v1alpha1 import Spec
from encoder_operator.tests.harness import SETTINGS
from encoder_operator.validation import checks
from encoder_platform import chart
from encoder_platform.chart import Body, Helm, OnCluster
from encoder_platform.kube import MODELS, Kube
from encoder_platform.plane import established
from encoder_plugins import catalog

# the fixture `cluster` creates it
TEAM = "team-a"
MODEL: Body = {
    "apiVersion": MODELS[0],
    "kind": "EncoderModel",
    "metadata": {"name": "minilm", "namespace": TEAM},
    "spec": {
        "plugin": "sentence_transformer",
        "source": {"huggingFace": {"repo": "org/name", "revision": "1" * 40}},
        "storage": {"claimName": "artifacts"},
        "serving": {"accelerator": "cpu"},
    },
}


def test_a_second_operator_stands_by_because_new_pods_wait_for_one(helm: Helm) -> None:
    objects = helm.render()
    spec = chart.find(objects, "Deployment", "encoder-operator")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["type"] == "RollingUpdate"
    environment = {entry["name"]: entry["value"] for entry in spec["template"]["spec"]["containers"][0]["env"]}
    assert environment["ENCODER_LEASE"] == "true"
    assert chart.find(objects, "PodDisruptionBudget", "encoder-operator")["spec"]["minAvailable"] == 1
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")


def test_the_first_model_of_the_notes_is_accepted(helm: Helm, cluster: OnCluster, kube: Kube) -> None:
    on_it = cluster(helm)
    output = on_it.run("upgrade", "--install", chart.RELEASE, str(chart.CHART), "--namespace", chart.NAMESPACE)
    wait_for("the EncoderModel API", lambda: established(kube), seconds=30)
    (block,) = re.findall(r"<<'EOF'\n(.*?)\n *EOF$", output, re.DOTALL | re.MULTILINE)
    manifest = textwrap.dedent(block)
    kube.run("apply", "--dry-run=server", "--warnings-as-errors", "--namespace", TEAM, "-f", "-", stdin=manifest)
    # what the API server accepts and the operator would reject
    spec = Spec.model_validate(yaml.safe_load(manifest)["spec"])
    checks.check_spec(spec, catalog.get(spec.plugin), SETTINGS)


def test_users_scale_a_model_with_kubectl(helm: Helm, cluster: OnCluster, kube: Kube) -> None:
    cluster(helm).upgrade(chart.CHART)
    wait_for("the EncoderModel API", lambda: established(kube), seconds=30)
    kube.run("apply", "--server-side", "-f", "-", stdin=json.dumps(MODEL))
    for role in ("view", "edit"):
        kube.run("-n", TEAM, "create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er")

    def scale(user: str) -> str:
        return kube.run("-n", TEAM, "scale", "em/minilm", "--replicas=3", f"--as={user}", check=False)

    # roles are aggregated by a controller
    wait_for("the role in effect", lambda: "scaled" in scale("editer"), seconds=30)
    found = kube.get(MODELS, "minilm", TEAM)
    assert found is not None
    assert found["spec"]["serving"]["replicas"] == 3
    get = ("-n", TEAM, "auth", "can-i", "--subresource=scale")
    assert kube.run(*get, "get", "encodermodels", "--as=viewer", check=False).splitlines()[:1] == ["yes"]
    assert "forbidden" in scale("viewer")
