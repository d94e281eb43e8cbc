"""A namespace that the operator may no longer read: the others are served on, and the lost one is reported."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from encoder_node.waiting import wait_for
from encoder_platform import chart, manifests
from encoder_platform.chart import Body, Helm, OnCluster
from encoder_platform.kube import Kube, is_true
from encoder_platform.operator_process import NAME, OperatorProcess, operator_process
from encoder_platform.plane import established
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

# the fixture `cluster` creates them
KEPT, LOST = "team-a", "team-b"
BINDING = ("rbac.authorization.k8s.io/v1", "RoleBinding")
EVENT = ("v1", "Event")


@pytest.fixture
def operator(helm: Helm, cluster: OnCluster, kube: Kube, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator of two namespaces that is not started, beside whatever a kubelet and a scheduler would do."""
    cluster(helm).upgrade(chart.CHART, values={"watch": {"namespaces": [KEPT, LOST]}})
    wait_for("the EncoderModel API", lambda: established(kube), seconds=30)
    stand_in = StandIn(kube)
    stand_in.furnish()
    for namespace in (KEPT, LOST):
        kube.apply(manifests.claim("artifacts", namespace))
    settings = {"ENCODER_RESYNC_SECONDS": "5", "ENCODER_LEASE_NAME": NAME, "ENCODER_LEASE_NAMESPACE": chart.NAMESPACE}
    with operator_process(kube, tmp_path, settings) as found, stand_in.running():
        yield found
    for namespace in (KEPT, LOST):
        kube.run("-n", namespace, "delete", "em,pvc", "--all", "--wait=false")


def take_away(kube: Kube) -> Body:
    """Delete the role binding in the lost namespace and return it."""
    found = kube.get(BINDING, NAME, LOST)
    assert found is not None
    kube.delete(BINDING, NAME, LOST)
    account = f"--as=system:serviceaccount:{chart.NAMESPACE}:{NAME}"

    def gone() -> bool:
        return kube.run("-n", LOST, "auth", "can-i", "list", "pods", account, check=False).splitlines()[:1] != ["yes"]

    wait_for("the permission gone", gone, seconds=30)
    return found


def give_back(kube: Kube, binding: Body) -> None:
    meta = {key: binding["metadata"][key] for key in ("name", "namespace", "labels")}
    body = {"apiVersion": BINDING[0], "kind": BINDING[1], "metadata": meta}
    body |= {key: binding[key] for key in ("roleRef", "subjects")}
    # with helm's field manager, which deletes it
    kube.run("apply", "--server-side", "--field-manager=helm", "-f", "-", stdin=json.dumps(body))


def unreadable(operator: OperatorProcess) -> dict[str, float]:
    _, text = operator.get("metrics")
    lines = [line for line in text.splitlines() if line.startswith("encoder_namespace_unreadable{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


def reported(kube: Kube, reason: str) -> list[str]:
    return [event["message"] for event in kube.all(EVENT, chart.NAMESPACE) if event.get("reason") == reason]


@pytest.mark.fault(
    "the operator's role binding in one of several namespaces is gone when it starts",
    "the metric `encoder_namespace_unreadable`, and an Event in the operator's namespace",
    "the other namespaces are served; this one as soon as it can be read again",
)
def test_a_namespace_that_is_lost_before_the_start_keeps_no_other_from_being_served(
    kube: Kube, operator: OperatorProcess
) -> None:
    binding = take_away(kube)
    kept, lost = Scene(KEPT, kube), Scene(LOST, kube)
    kept.apply_model(rollout={"minReadySeconds": 0})
    lost.apply_model(rollout={"minReadySeconds": 0})
    operator.start()
    operator.wait_ready(seconds=30)
    kept.wait_current("Ready", seconds=90)
    assert lost.model().get("status") in (None, {})
    assert unreadable(operator) == {KEPT: 0, LOST: 1}
    (message,) = reported(kube, "NamespaceUnreadable")
    assert LOST in message
    assert "forbidden" in message
    give_back(kube, binding)
    lost.wait_current("Ready", seconds=90)
    wait_for("the metric", lambda: unreadable(operator) == {KEPT: 0, LOST: 0}, seconds=30)
    assert operator.get("readyz")[0] == operator.get("healthz")[0] == 200


def test_a_namespace_that_is_lost_meanwhile_stops_neither_resync_nor_batches(
    kube: Kube, operator: OperatorProcess
) -> None:
    kept, lost = Scene(KEPT, kube), Scene(LOST, kube)
    operator.start()
    operator.wait_ready()
    names = [f"m{number}" for number in range(4)]
    for scene in (kept, lost):
        for name in names:
            scene.apply_model(name, rollout={"minReadySeconds": 0})
    for scene in (kept, lost):
        for name in names:
            scene.wait_current("Ready", name, seconds=90)
    binding = take_away(kube)
    wait_for("the report", lambda: unreadable(operator) == {KEPT: 0, LOST: 1}, seconds=30)
    # read together with those of the lost namespace
    before = resyncs(operator)
    wait_for("two more resyncs", lambda: resyncs(operator) >= before + 2 * len(names), seconds=60)
    for name in names:
        kept.patch_serving({"replicas": 2}, name)
    for name in names:
        wait_for(f"{name} scaled", lambda name=name: len(ready(kept, name)) == 2, seconds=30)  # type: ignore[misc]
    assert operator.get("readyz")[0] == 200
    assert all(is_true(lost.model(name), "Ready") for name in names)
    give_back(kube, binding)
    wait_for("the report", lambda: unreadable(operator) == {KEPT: 0, LOST: 0}, seconds=30)
    lost.patch_serving({"replicas": 2}, "m0")
    wait_for("m0 scaled", lambda: len(ready(lost, "m0")) == 2, seconds=60)
    assert reported(kube, "NamespaceReadable")


def resyncs(operator: OperatorProcess) -> float:
    """Return how many reconciles of any model have succeeded."""
    _, text = operator.get("metrics")
    lines = [line for line in text.splitlines() if line.startswith('encoder_reconcile_total{result="ok"}')]
    return float(lines[0].rpartition(" ")[2])


def ready(scene: Scene, name: str) -> list[Body]:
    return [pod for pod in scene.pods(name) if is_true(pod, "Ready")]
