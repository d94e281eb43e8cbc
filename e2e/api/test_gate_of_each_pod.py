"""Whose gate is open, and what opens it: each product and image is compared, each pod where products cannot be distinguished."""

import json
from datetime import datetime

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import DEPLOYMENT, POD, REVISION, Body, condition, is_true
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import Ended, StandIn, fails, never, passes, verdict

GATE = "encoders.dev/parity"
SERVING = "encoders.dev/component=serving"
NOW = {"minReadySeconds": 0}
SHARED = {"create": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}


def ready(scene: Scene) -> list[Body]:
    return [pod for pod in scene.pods() if is_true(pod, "Ready")]


def revision(body: Body) -> str:
    return str(body["metadata"]["labels"]["encoders.dev/revision"])


def products(scene: Scene) -> list[str]:
    found = scene.kube.all(REVISION, scene.name, "encoders.dev/component=verdict")
    return sorted(record["data"]["product"] for record in found)


@pytest.mark.fault(
    "the engine does not respond to the parity check",
    "`Inconclusive`, not Degraded",
    "the check is retried with backoff; nothing is promoted, and no more than one pod is started for it",
)
def test_a_first_rollout_is_one_pod_and_no_endpoint_until_a_comparison_passes(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    stand_in.parity = lambda pod: verdict(pod, "Inconclusive")
    watched = scene.kube.watching
    with watched(DEPLOYMENT, scene.name) as deployments, watched(POD, scene.name, SERVING) as pods:
        scene.apply_model(serving={"replicas": 3}, rollout=NOW)
        wait_for(
            "two comparisons that ended",
            lambda: [is_true(job, "Failed") for job in scene.jobs("parity")] == [True, True],
            seconds=60,
        )
        scene.wait_condition("Verified", "Inconclusive", seconds=90)
        live = scene.model()
        assert [is_true(live, kind) for kind in ("Ready", "Available", "Degraded")] == [False] * 3
    assert {found["spec"]["replicas"] for found in deployments} == {1}
    assert pods
    assert not [pod for pod in pods if is_true(pod, "Ready")]
    first, second = sorted(scene.jobs("parity"), key=lambda job: str(job["metadata"]["creationTimestamp"]))
    ended = datetime.fromisoformat(condition(first, "Failed")["lastTransitionTime"])
    # both are whole seconds
    assert (datetime.fromisoformat(second["metadata"]["creationTimestamp"]) - ended).total_seconds() >= 4
    stand_in.parity = passes
    scene.wait_current("Ready", seconds=60)
    wait_for("all three", lambda: len(ready(scene)) == 3, seconds=90)
    assert len(scene.jobs("parity")) == 3


def test_warn_serves_and_reports_disabled_compares_nothing_and_enforce_closes(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    stand_in.parity = fails
    scene.apply_model(parity={"mode": "Warn"}, rollout=NOW)
    live = scene.wait_current("Ready", seconds=60)
    reported = {
        kind: (condition(live, kind)["status"], condition(live, kind)["reason"]) for kind in ("Verified", "Degraded")
    }
    assert reported == {"Verified": ("False", "ParityFailed"), "Degraded": ("True", "ParityFailed")}
    assert "cosine 0.812 (" in condition(live, "Verified")["message"]
    first = live["status"]["activeRevision"]
    scene.patch({"parity": {"mode": "Disabled"}, "serving": {"maxModelLen": 64}})
    wait_for("the new revision", lambda: scene.model()["status"]["activeRevision"] != first, seconds=60)
    live = scene.wait_current("Ready", seconds=60)
    found = condition(live, "Verified")
    assert (found["status"], found["reason"]) == ("Unknown", "Disabled")
    # the old one's pod may be on its way out still
    active = {live["status"]["activeRevision"]}
    wait_for("pods of no other", lambda: {revision(pod) for pod in ready(scene)} == active, seconds=90)
    assert [condition(pod, GATE)["reason"] for pod in ready(scene)] == ["Disabled"]
    assert [revision(job) for job in scene.jobs("parity")] == [first]
    scene.patch({"parity": {"mode": "Enforce"}})
    scene.wait_condition("Ready", "ParityFailed", seconds=60)
    wait_for("nothing serves", lambda: not scene.pods(), seconds=90)
    scene.wait_condition("Available", "ParityFailed", seconds=90)
    assert len(scene.jobs("parity")) == 2


def test_each_gpu_product_is_compared_once(scene: Scene, stand_in: StandIn, operator: OperatorProcess) -> None:
    for node, product in (("gpu-h200", "NVIDIA-H200"), ("gpu-l4", "NVIDIA-L4")):
        stand_in.add_node(node, {"nvidia.com/gpu.product": product}, **{"nvidia.com/gpu": "8"})
    where = ["gpu-h200"]
    stand_in.place = lambda pod: (
        where[0] if pod["metadata"]["labels"]["encoders.dev/component"] == "serving" else "node-1"
    )
    scene.apply_model(storage=SHARED, serving={"accelerator": "nvidia", "resources": {}}, rollout=NOW)
    scene.wait_current("Ready", seconds=60)
    # another pod on the same product is verified already
    scene.patch_serving({"replicas": 2})
    wait_for("two pods", lambda: len(ready(scene)) == 2, seconds=90)
    assert (len(scene.jobs("parity")), products(scene)) == (1, ["NVIDIA-H200"])
    where[0] = "gpu-l4"
    stand_in.parity = never
    scene.patch_serving({"replicas": 3})
    wait_for("a second comparison", lambda: len(scene.jobs("parity")) == 2, seconds=90)
    assert {pod["spec"]["nodeName"] for pod in ready(scene)} == {"gpu-h200"}
    stand_in.parity = passes
    wait_for("three pods", lambda: len(ready(scene)) == 3, seconds=90)
    assert (len(scene.jobs("parity")), products(scene)) == (2, ["NVIDIA-H200", "NVIDIA-L4"])


@pytest.mark.fault(
    "an update with Recreate fails where the operator cannot read Nodes",
    "`ParityFailed` on UpToDate, Available once the pods are verified",
    "the restored pods are verified separately, and serve traffic",
)
def test_without_nodes_pods_that_come_back_are_compared_and_pinning_a_product_closes_none(
    scene: Scene, stand_in: StandIn, stopped_operator: OperatorProcess
) -> None:
    stopped_operator.start(ENCODER_NAMESPACES=json.dumps([scene.name]))
    stopped_operator.wait_ready()
    scene.apply_model(serving={"accelerator": "nvidia", "resources": {}}, rollout={**NOW, "strategy": "Recreate"})
    first = scene.wait_current("Ready", seconds=60)["status"]["activeRevision"]
    before = {pod["metadata"]["uid"] for pod in ready(scene)}

    def compare(pod: Body) -> Ended | None:
        return verdict(pod) if revision(pod) == first else fails(pod)

    stand_in.parity = compare
    scene.patch_serving({"maxModelLen": 64})
    scene.wait_condition("UpToDate", "ParityFailed", seconds=60)
    wait_for("the verified revision serves again", lambda: is_true(scene.model(), "Available"), seconds=60)
    assert {revision(pod) for pod in ready(scene)} == {first}
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in ready(scene))
    # what serves has no product that anybody knows, and is none of those that the new one is pinned to
    stand_in.parity = never
    serving = {"maxModelLen": None, "acceleratorProduct": "NVIDIA-L4"}
    (name,) = [pod["metadata"]["name"] for pod in ready(scene)]
    with scene.kube.watching(POD, scene.name, SERVING) as seen:
        scene.patch({"rollout": {"strategy": "RollingUpdate"}, "serving": serving})
        scene.wait_condition("Progressing", "ParityRunning", seconds=60)
        assert is_true(scene.kube.get(POD, name, scene.name), "Ready")
    assert {is_true(pod, "Ready") for pod in seen if pod["metadata"]["name"] == name} == {True}
    stand_in.parity = passes
    scene.wait_current("Ready", seconds=60)
    assert "NVIDIA-L4" in products(scene)


def test_a_vanished_product_label_takes_no_pod_off_the_network(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    stand_in.add_node("gpu-unlabelled", {"nvidia.com/gpu.product": "NVIDIA-H200"}, **{"nvidia.com/gpu": "8"})
    stand_in.place = lambda pod: (
        "gpu-unlabelled" if pod["metadata"]["labels"]["encoders.dev/component"] == "serving" else "node-1"
    )
    scene.apply_model(storage=SHARED, serving={"accelerator": "nvidia", "resources": {}, "replicas": 2}, rollout=NOW)
    wait_for("two pods", lambda: len(ready(scene)) == 2, seconds=60)
    names = {pod["metadata"]["name"] for pod in ready(scene)}
    scene.kube.run("label", "node", "gpu-unlabelled", "nvidia.com/gpu.product-")
    stand_in.parity = never
    with scene.kube.watching(POD, scene.name, SERVING) as seen:
        # it reads the node again
        operator.restart()
        scene.patch_serving({"replicas": 3})
        wait_for("the new pod is compared for its node", lambda: len(scene.jobs("parity")) == 2, seconds=60)
    assert {is_true(pod, "Ready") for pod in seen if pod["metadata"]["name"] in names} == {True}
    stand_in.parity = passes
    wait_for("three pods", lambda: len(ready(scene)) == 3, seconds=60)
    assert products(scene) == ["NVIDIA-H200", "node:gpu-unlabelled"]


def test_enabling_parity_checks_takes_no_pod_off_the_network(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    scene.apply_model(parity={"mode": "Disabled"}, serving={"replicas": 2}, rollout=NOW)
    wait_for("two pods", lambda: len(ready(scene)) == 2, seconds=60)
    assert scene.jobs("parity") == []
    stand_in.parity = never
    with (
        scene.kube.watching(DEPLOYMENT, scene.name) as deployments,
        scene.kube.watching(POD, scene.name, SERVING) as pods,
    ):
        scene.patch({"parity": {"mode": "Enforce"}})
        scene.wait_condition("Verified", "ParityRunning", seconds=60)
        stand_in.parity = passes
        scene.wait_current("Verified", seconds=60)
    assert {(is_true(pod, GATE), is_true(pod, "Ready")) for pod in pods} == {(True, True)}
    assert {found["spec"]["replicas"] for found in deployments} <= {2}
    assert {condition(pod, GATE)["reason"] for pod in ready(scene)} == {"ParityPassed"}


@pytest.mark.fault(
    "one GPU computes different results from the others",
    "`ParityFailed` on Degraded",
    "its pod gets no traffic, the others keep serving",
)
def test_without_nodes_each_pod_is_compared_by_itself(
    scene: Scene, stand_in: StandIn, stopped_operator: OperatorProcess
) -> None:
    stopped_operator.start(ENCODER_NAMESPACES=json.dumps([scene.name]))
    stopped_operator.wait_ready()
    wrong: set[str] = set()

    def compare(pod: Body) -> object:
        arguments = pod["spec"]["containers"][0]["args"]
        compared = json.loads(arguments[arguments.index("--binding") + 1])["uid"]
        return fails(pod) if compared in wrong else verdict(pod)

    stand_in.parity = compare  # type: ignore[assignment]
    serving = {"accelerator": "nvidia", "resources": {}, "replicas": 2}
    scene.apply_model(serving=serving, rollout={"minReadySeconds": 0})
    scene.wait_current("Ready", seconds=60)
    wait_for("two pods, two comparisons", lambda: (len(ready(scene)), len(scene.jobs("parity"))) == (2, 2), seconds=60)
    known = {pod["metadata"]["uid"] for pod in scene.pods()}

    def place(pod: Body) -> str:
        if pod["metadata"]["labels"]["encoders.dev/component"] == "serving" and pod["metadata"]["uid"] not in known:
            wrong.add(pod["metadata"]["uid"])
        return "node-1"

    stand_in.place = place
    scene.patch_serving({"replicas": 3})
    scene.wait_condition("Degraded", "ParityFailed", seconds=60)
    assert {pod["metadata"]["uid"] for pod in ready(scene)} == known
    assert is_true(scene.model(), "Available")


@pytest.mark.fault(
    "the container of a verified pod runs another image",
    "`NotVerified` on the pod's gate",
    "no traffic until that image is verified",
)
def test_another_image_closes_the_gate_until_it_is_compared(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0}, serving={"replicas": 2})
    scene.wait_current("Ready", seconds=60)
    wait_for("two pods", lambda: len(ready(scene)) == 2, seconds=90)
    stand_in.parity = fails
    pod = scene.pods()[0]
    container = {
        **pod["status"]["containerStatuses"][0],
        "imageID": "sha256:other",
        "containerID": "containerd://other",
    }
    scene.kube.patch_status(POD, pod["metadata"]["name"], scene.name, {"containerStatuses": [container]})

    def closed() -> bool:
        live = scene.kube.get(POD, pod["metadata"]["name"], scene.name)
        return condition(live, GATE).get("status") == "False"

    wait_for("its gate is closed", closed, seconds=90)
    scene.wait_condition("Degraded", "ParityFailed", seconds=60)
    wait_for("one pod serves", lambda: len(ready(scene)) == 1, seconds=90)
    assert is_true(scene.model(), "Available")
