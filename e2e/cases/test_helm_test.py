"""`helm test` on a real node: its pod runs in a restricted namespace, serves a model from the tests' hub, and takes it away again."""

from __future__ import annotations

import pytest

from encoder_platform import chart, manifests
from encoder_platform.chart import Helm
from encoder_platform.install import Platform, chart_values
from encoder_platform.kube import MODELS, POD

MODEL = "encoder-operator-test"


@pytest.mark.soak
@pytest.mark.alone
def test_helm_test_serves_a_model_and_takes_it_away(platform: Platform) -> None:
    kube = platform.kube
    helm = Helm(kube.kubectl.with_name("helm"), dict(kube.environment()))
    storage = {"create": {"size": "2Gi"}, "policy": "Delete"}
    spec = manifests.encoder_model("any", chart.NAMESPACE, revision=platform.hub_revision, storage=storage)["spec"]
    values = chart_values(platform.images)
    # only the hook differs, so the operator goes on as it is
    helm.upgrade(chart.CHART, values={**values, "test": {"model": spec, "timeoutSeconds": 240}})
    try:
        output = helm.run("test", chart.RELEASE, "--namespace", chart.NAMESPACE, "--timeout", "5m", seconds=330)
    finally:
        helm.upgrade(chart.CHART, values=values)
    assert "Succeeded" in output
    assert kube.get(MODELS, MODEL, chart.NAMESPACE) is None
    assert kube.get(POD, MODEL, chart.NAMESPACE) is None
