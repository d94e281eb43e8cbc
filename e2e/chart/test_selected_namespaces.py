"""The operator of the namespaces that have a label: it serves one as soon as it has the label, and leaves it alone when it has not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import chart, manifests
from encoder_platform.chart import Body, Helm, OnCluster
from encoder_platform.kube import Kube, is_true
from encoder_platform.operator_process import OperatorProcess, operator_process
from encoder_platform.plane import established
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

# the fixture `cluster` creates them; the second one has the label all the time, and shows that the operator works
CHANGING, SERVED = "team-a", "team-b"
SELECTOR: Body = {"matchLabels": {"encoders": "enabled"}}
COMPONENT = "encoders.dev/component"


def label(kube: Kube, namespace: str, value: str) -> None:
    """Set the label of a namespace, or remove it with an empty value."""
    change = f"encoders={value}" if value else "encoders-"
    kube.run("label", "namespace", namespace, change, "--overwrite")


@pytest.fixture
def installed(helm: Helm, cluster: OnCluster, kube: Kube) -> Iterator[Kube]:
    """A cluster with the chart, which serves one of two namespaces."""
    cluster(helm).upgrade(chart.CHART, values={"watch": {"namespaceSelector": SELECTOR}})
    wait_for("the EncoderModel API", lambda: established(kube), seconds=30)
    label(kube, SERVED, "enabled")
    yield kube
    for namespace in (CHANGING, SERVED):
        label(kube, namespace, "")
        kube.run("-n", namespace, "delete", "em,pvc", "--all", "--wait=false")


def replicas(scene: Scene) -> int:
    found = scene.deployment()
    return found["spec"]["replicas"] if found is not None else 0


def reconciles(operator: OperatorProcess) -> float:
    _, text = operator.get("metrics")
    lines = [line for line in text.splitlines() if line.startswith('encoder_reconcile_total{result="ok"}')]
    return float(lines[0].rpartition(" ")[2])


def wait_logged(operator: OperatorProcess, words: str) -> None:
    wait_for(words, lambda: [line for line in operator.lines() if words in str(line.get("event"))], seconds=60)


def test_a_namespace_is_served_while_it_has_the_label(installed: Kube, tmp_path: Path) -> None:
    kube = installed
    stand_in = StandIn(kube)
    stand_in.furnish()
    changing, served = Scene(CHANGING, kube), Scene(SERVED, kube)
    for scene in (changing, served):
        kube.apply(manifests.claim("artifacts", scene.name))
        scene.apply_model(rollout={"minReadySeconds": 0})
    with operator_process(kube, tmp_path, {"ENCODER_RESYNC_SECONDS": "2"}) as operator, stand_in.running():
        operator.start()
        operator.wait_ready()
        served.wait_current("Ready", seconds=90)

        def wait_resyncs() -> None:
            before = reconciles(operator)
            wait_for("two more resyncs", lambda: reconciles(operator) >= before + 2, seconds=30)

        wait_resyncs()
        assert changing.model().get("status") in (None, {})
        assert (changing.deployment(), changing.jobs("prep")) == (None, [])

        label(kube, CHANGING, "enabled")
        changing.wait_current("Ready", seconds=90)

        label(kube, CHANGING, "disabled")
        wait_logged(operator, "a namespace is no longer served")
        for scene in (changing, served):
            scene.patch_serving({"replicas": 2})
        status = changing.model()["status"]
        wait_for("the edit in the served namespace", lambda: replicas(served) == 2, seconds=30)
        wait_resyncs()
        assert replicas(changing) == 1
        assert changing.model()["status"] == status
        # its pods keep serving
        assert [is_true(pod, "Ready") for pod in changing.pods()] == [True]
        # a restart finds the namespace as it is
        operator.restart()
        wait_resyncs()
        assert changing.model()["status"] == status

        label(kube, CHANGING, "enabled")
        wait_for("the edit in the namespace that is served again", lambda: replicas(changing) == 2, seconds=30)
        wait_for("both pods ready", lambda: [is_true(p, "Ready") for p in changing.pods()] == [True] * 2, seconds=30)
        _, text = operator.get("metrics")
    # the chart's role is enough
    assert not [line for line in text.splitlines() if line.startswith("encoder_api_requests_total") and "403" in line]
    assert "forbidden" not in operator.log.read_text().lower()


def test_the_policies_match_the_namespaces_with_the_label(installed: Kube) -> None:
    kube = installed
    for namespace in (CHANGING, SERVED):
        kube.run("-n", namespace, "create", "rolebinding", "tenant", "--clusterrole=admin", "--user=tenant")

    def forge(namespace: str) -> str:
        """Create a pod that claims to be a model's, as an administrator of the namespace."""
        container = {"name": "c", "image": "e:1", "securityContext": manifests.LOCKED_CONTAINER}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "forged", "namespace": namespace, "labels": {COMPONENT: "parity"}},
            "spec": {"securityContext": manifests.RESTRICTED, "containers": [container]},
        }
        arguments = ("create", "--dry-run=server", "-f", "-", "--as=tenant")
        return kube.run(*arguments, stdin=json.dumps(body), check=False)

    rejected, created = "belong to an EncoderModel", "pod/forged created"
    wait_for("the policy in effect", lambda: rejected in forge(SERVED), seconds=60)
    assert created in forge(CHANGING)
    label(kube, CHANGING, "enabled")
    wait_for("the policy in effect in a namespace with the label", lambda: rejected in forge(CHANGING), seconds=30)
    # docs/security.md: a user who may change the labels decides where the policies apply
    label(kube, CHANGING, "")
    wait_for("no policy without the label", lambda: created in forge(CHANGING), seconds=30)
    # which the admin role of the namespace does not allow
    change = kube.run("label", "namespace", SERVED, "encoders-", "--as=tenant", check=False)
    assert "forbidden" in change.lower()
