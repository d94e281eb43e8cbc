"""What `helm test` runs, under the account that the chart gives it: there is no kubelet here that would run its pod."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from encoder_platform import chart, manifests
from encoder_platform.kube import MODELS, Body, Kube
from encoder_platform.operator_process import OperatorProcess, kubeconfig_of_the_operator
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

ACCOUNT = "encoder-operator-test"


def helm_test(kube: Kube, scene: Scene, folder: Path, test: Body) -> subprocess.CompletedProcess[str]:
    """Apply the account and the role of the chart's hook, and run its pod's command as that account."""
    objects = chart.helm().render({"watch": {"namespaces": [scene.name]}, "test": test})
    for kind in ("ServiceAccount", "Role", "RoleBinding"):
        kube.apply(chart.find(objects, kind, ACCOUNT))
    (container,) = chart.find(objects, "Pod", ACCOUNT)["spec"]["containers"]
    kubeconfig = folder / "kubeconfig"
    config = yaml.safe_load(kubeconfig_of_the_operator(kube))
    config["users"][0]["user"]["token"] = kube.run("-n", chart.NAMESPACE, "create", "token", ACCOUNT).strip()
    kubeconfig.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "encoder_operator", *container["args"]]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_model_is_served_and_taken_away(
    scene: Scene, operator: OperatorProcess, stand_in: StandIn, tmp_path: Path
) -> None:
    spec = manifests.encoder_model("any", scene.name, revision=scene.revision)["spec"]
    done = helm_test(scene.kube, scene, tmp_path, {"model": spec, "timeoutSeconds": 90})
    assert done.returncode == 0, done.stderr
    assert "Ready=True" in done.stderr.splitlines()[-1]
    assert scene.kube.get(MODELS, ACCOUNT, scene.name) is None


@pytest.mark.usefixtures("operator")
def test_a_model_that_does_not_become_ready_is_reported_and_deleted(scene: Scene, tmp_path: Path) -> None:
    spec = manifests.encoder_model("any", scene.name, revision=scene.revision)["spec"]
    done = helm_test(scene.kube, scene, tmp_path, {"model": spec, "timeoutSeconds": 6})
    assert done.returncode == 1
    assert "not Ready after 6 s" in done.stderr
    assert scene.kube.get(MODELS, ACCOUNT, scene.name) is None


def test_without_a_model_only_the_api_server_is_tested(scene: Scene, tmp_path: Path) -> None:
    done = helm_test(scene.kube, scene, tmp_path, {})
    assert done.returncode == 0, done.stderr
    assert "the API server accepts a valid EncoderModel" in done.stderr
    assert "the API server rejects an EncoderModel with two sources" in done.stderr
    assert json.loads(scene.kube.run("-n", scene.name, "get", "em", "-o", "json"))["items"] == []
