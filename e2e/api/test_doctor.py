"""`encoder-operator doctor`, run with the operator's own account, on a cluster that is fit and on one that is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import Kube
from encoder_platform.operator_process import NAME, chart_environment, kubeconfig_of_the_operator
from encoder_platform.plane import CRD

ROLE = ("rbac.authorization.k8s.io/v1", "ClusterRole")


@pytest.fixture
def environment(kube: Kube, tmp_path: Path) -> dict[str, str]:
    config = tmp_path / "kubeconfig"
    config.write_text(kubeconfig_of_the_operator(kube))
    return {**os.environ, **chart_environment(kube), "KUBECONFIG": str(config)}


def doctor(environment: dict[str, str]) -> tuple[int, str]:
    command = [sys.executable, "-m", "encoder_operator", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_cluster_with_the_chart_on_it_is_fit(environment: dict[str, str]) -> None:
    code, output = doctor(environment)
    assert code == 0, output
    assert "all required permissions" in output
    assert "has every field" in output


def test_an_administrator_gets_findings_about_storage_and_accelerators(kube: Kube, environment: dict[str, str]) -> None:
    code, output = doctor({**environment, "KUBECONFIG": str(kube.kubeconfig)})
    assert code == 0, output
    assert "the default StorageClass is standard" in output
    assert "nvidia.com/gpu" in output


def test_a_missing_permission_is_named_with_its_remedy(kube: Kube, environment: dict[str, str]) -> None:
    role = kube.get(ROLE, NAME)
    assert role is not None
    without = json.loads(json.dumps(role["rules"]))
    for rule in without:
        if "jobs" in rule["resources"]:
            rule["verbs"].remove("create")
    kube.patch(ROLE, NAME, "", {"rules": without})
    try:
        code, output = doctor(environment)
    finally:
        kube.patch(ROLE, NAME, "", {"rules": role["rules"]})
    assert code == 1
    assert "missing permission in all namespaces: create jobs.batch" in output
    assert "-> upgrade the chart" in output


def test_a_selector_of_namespaces_needs_the_right_to_read_them(kube: Kube, environment: dict[str, str]) -> None:
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    selecting = {**environment, "ENCODER_NAMESPACE_SELECTOR": json.dumps(selector)}
    # this chart is installed without a selector
    code, output = doctor(selecting)
    assert code == 1
    for verb in ("get", "list", "watch"):
        assert f"missing permission in all namespaces: {verb} namespaces" in output
    assert "cannot list Namespaces" in output
    code, output = doctor({**selecting, "KUBECONFIG": str(kube.kubeconfig)})
    assert code == 0, output
    assert "namespaces that are served: default (1)" in output
    selector["matchLabels"]["kubernetes.io/metadata.name"] = "nowhere"
    none = {"ENCODER_NAMESPACE_SELECTOR": json.dumps(selector), "KUBECONFIG": str(kube.kubeconfig)}
    code, output = doctor({**environment, **none})
    assert code == 0, output
    assert "the labels of no namespace match watch.namespaceSelector" in output


def test_an_unreachable_api_server_is_reported(environment: dict[str, str], tmp_path: Path) -> None:
    config = json.loads(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x"}))
    config["clusters"] = [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}]
    config["contexts"] = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
    config["users"] = [{"name": "x", "user": {}}]
    (tmp_path / "nowhere").write_text(json.dumps(config))
    code, output = doctor({**environment, "KUBECONFIG": str(tmp_path / "nowhere")})
    assert code == 1
    assert "cannot be reached" in output
    assert "Traceback" not in output


def test_a_crd_of_another_version_is_reported(kube: Kube, environment: dict[str, str]) -> None:
    definition = kube.get(CRD, "encodermodels.encoders.dev")
    assert definition is not None
    older = json.loads(json.dumps(definition["spec"]["versions"]))
    del older[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["suspend"]
    kube.patch(CRD, "encodermodels.encoders.dev", "", {"spec": {"versions": older}})
    try:
        # the API server publishes its schemas a moment later
        output = wait_for("it is noticed", lambda: _wrong(environment), seconds=60)
    finally:
        kube.patch(CRD, "encodermodels.encoders.dev", "", {"spec": {"versions": definition["spec"]["versions"]}})
    assert "missing fields: spec.suspend" in output


def _wrong(environment: dict[str, str]) -> str | None:
    code, output = doctor(environment)
    return output if code == 1 else None
