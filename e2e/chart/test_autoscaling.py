"""The examples of docs/autoscaling.md: a real HorizontalPodAutoscaler scales an EncoderModel, and KEDA's object is one that KEDA knows."""

import json
import re
from typing import Any

import pytest
import yaml

from encoder_node import module_sources
from encoder_node.control_plane import ControlPlane
from encoder_node.waiting import wait_for
from encoder_platform import chart, manifests, metrics_server
from encoder_platform.chart import Helm, OnCluster
from encoder_platform.kube import MODELS, Body, Kube
from encoder_platform.plane import established

PAGE = (chart.ROOT / "docs" / "autoscaling.md").read_text()
EXAMPLES: dict[str, Body] = {
    body["kind"]: body for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) for body in [yaml.safe_load(text)]
}


# the fixture `cluster` makes it
TEAM = "team-a"


def replicas(kube: Kube) -> Any:
    model = kube.get(MODELS, "minilm", TEAM)
    assert model is not None
    return model["spec"]["serving"].get("replicas")


def serving(kube: Kube, number: int) -> None:
    """Say in the status what an operator would say of so many pods."""
    status = {"replicas": number, "readyReplicas": number, "selector": "encoders.dev/model=minilm"}
    patch = json.dumps({"status": {"phase": "Serving", **status}})
    kube.run("-n", TEAM, "patch", "em", "minilm", "--subresource=status", "--type=merge", "-p", patch)


@pytest.mark.complaint(24)
def test_an_autoscaler_scales_a_model_by_its_load(
    control: ControlPlane, helm: Helm, cluster: OnCluster, kube: Kube
) -> None:
    cluster(helm).upgrade(chart.CHART)
    wait_for("the EncoderModel API", lambda: established(kube), seconds=30)
    kube.apply(manifests.encoder_model("minilm", TEAM, revision="1" * 40))
    serving(kube, 1)
    pki = control.folder / "pki"
    with metrics_server.running(kube, pki / "apiserver.crt", pki / "apiserver.key") as load:
        load.value = 90

        def answers() -> bool:
            path = f"/apis/{metrics_server.GROUP}/{metrics_server.VERSION}/namespaces/{TEAM}/encoder_serving_in_flight"
            return '"90"' in kube.run("get", "--raw", path, check=False)

        wait_for("the metrics API", answers, seconds=60)
        example = EXAMPLES["HorizontalPodAutoscaler"]
        # a test has no ten minutes to see that it goes down as well
        behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
        metadata = {**example["metadata"], "namespace": TEAM}
        kube.apply({**example, "metadata": metadata, "spec": {**example["spec"], "behavior": behavior}})
        wait_for("three replicas for 90 requests in flight", lambda: replicas(kube) == 3, seconds=90)
        serving(kube, 3)
        load.value = 20
        wait_for("one replica for 20 requests in flight", lambda: replicas(kube) == 1, seconds=90)
        found = json.loads(kube.run("-n", TEAM, "get", "hpa", "minilm", "-o", "json"))
        active = [entry for entry in found["status"]["conditions"] if entry["type"] == "ScalingActive"]
        assert active[0]["status"] == "True", active


@pytest.mark.usefixtures("cluster")
def test_the_example_for_keda_is_one_that_keda_knows(kube: Kube) -> None:
    folder = module_sources.folder(module_sources.KEDA) / "config" / "crd" / "bases"
    kube.run("apply", "--server-side", "-f", str(folder / "keda.sh_scaledobjects.yaml"))
    wait_for("KEDA's API", lambda: established(kube, "scaledobjects.keda.sh"), seconds=30)
    example = json.dumps(EXAMPLES["ScaledObject"]).replace('"namespace": "search"', f'"namespace": "{TEAM}"')
    kube.run("create", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-", stdin=example)
    assert EXAMPLES["ScaledObject"]["spec"]["scaleTargetRef"]["kind"] == "EncoderModel"
