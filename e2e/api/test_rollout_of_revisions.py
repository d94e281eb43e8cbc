"""One revision takes the place of another: Kubernetes' own rollout and garbage collection, with pods that the test controls."""

from functools import partial

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import REVISION, Body, is_true
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn, Unschedulable, fails, passes

NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
POLICY = ("networking.k8s.io/v1", "NetworkPolicy")
BUDGET = ("policy/v1", "PodDisruptionBudget")
CLAIM = ("v1", "PersistentVolumeClaim")


def revision(pod: Body) -> str:
    return str(pod["metadata"]["labels"]["encoders.dev/revision"])


def ready(scene: Scene) -> set[str]:
    return {pod["metadata"]["uid"] for pod in scene.pods() if is_true(pod, "Ready")}


def only_of(first: str) -> object:
    """Let the engines of one revision start, and no others."""
    return lambda pod: pod["metadata"]["labels"].get("encoders.dev/revision") == first


@pytest.mark.fault(
    "the pods of an update never start",
    "`ProgressDeadlineExceeded`",
    "the verified revision is restored unchanged, until the spec changes or a retry is requested",
)
def test_twenty_edits_then_a_revert_then_a_candidate_that_never_starts(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0})
    first = scene.wait_current("Ready", seconds=60)["status"]["activeRevision"]
    pods = ready(scene)
    stand_in.loads = only_of(first)  # type: ignore[assignment]
    for length in range(20):
        scene.patch_serving({"maxModelLen": 64 + length})
    scene.wait_condition("UpToDate", "RolloutInProgress", seconds=90)
    assert ready(scene) == pods
    # back in the middle: no other pod can start, so that this waits for none, and nothing that serves is touched
    scene.patch_serving({"maxModelLen": None})
    scene.wait_current("Ready", seconds=90)
    assert ready(scene) == pods
    assert len(scene.jobs("parity")) == 1
    scene.patch_serving({"maxModelLen": 99})
    record = wait_for("the candidate's record", lambda: candidate(scene), seconds=90)
    # as if its pod had hung since then; the clock is on the record, so that a restart keeps it
    scene.kube.patch(
        REVISION,
        record["metadata"]["name"],
        scene.name,
        {"metadata": {"annotations": {"encoders.dev/stalled": '{"since":"2026-01-01T00:00:00Z"}'}}},
    )
    operator.restart()
    scene.wait_condition("UpToDate", "ProgressDeadlineExceeded", seconds=90)
    wait_for("the candidate's pods are gone", lambda: len(scene.pods()) == 1, seconds=90)
    assert ready(scene) == pods
    status = scene.model()["status"]
    assert (status["activeRevision"], status["phase"]) == (first, "Degraded")
    stand_in.loads = lambda pod: True
    scene.kube.patch(
        ("encoders.dev/v1alpha1", "EncoderModel"),
        "minilm",
        scene.name,
        {"metadata": {"annotations": {"encoders.dev/retry": "1"}}},
    )
    scene.wait_current("Ready", seconds=60)
    assert scene.model()["status"]["activeRevision"] == record["metadata"]["labels"]["encoders.dev/revision"]


def candidate(scene: Scene) -> Body | None:
    """The record of the revision of the newest edit, once its pod has a node."""
    wanted = scene.model()["status"].get("candidateRevision")
    waits = [pod for pod in scene.pods() if revision(pod) == wanted and pod["spec"].get("nodeName")]
    return scene.kube.get(REVISION, f"minilm-{wanted}", scene.name) if waits else None


@pytest.mark.complaint(8)
@pytest.mark.fault(
    "no GPU is free for an update",
    "`InsufficientGPU` with the scheduler's message",
    "the update continues when a GPU is free",
)
def test_a_single_gpu_is_waited_for_or_recreated_on(scene: Scene, stand_in: StandIn, operator: OperatorProcess) -> None:
    stand_in.add_node("gpu-1", {"nvidia.com/gpu.product": "NVIDIA-H200"}, **{"nvidia.com/gpu": "1"})

    def one_gpu(pod: Body) -> str | Unschedulable:
        if pod["metadata"]["labels"]["encoders.dev/component"] != "serving":
            return "node-1"
        others = [p for p in scene.pods() if p["spec"].get("nodeName") == "gpu-1"]
        return Unschedulable(NO_GPU) if others else "gpu-1"

    stand_in.place = one_gpu
    scene.apply_model(rollout={"minReadySeconds": 0}, serving={"accelerator": "nvidia", "resources": {}})
    first = scene.wait_current("Ready", seconds=60)["status"]["activeRevision"]
    pods = ready(scene)
    scene.patch_serving({"maxModelLen": 64})
    assert scene.wait_condition("Progressing", "InsufficientGPU", seconds=90)["message"] == NO_GPU
    assert ready(scene) == pods
    assert is_true(scene.model(), "Available")
    # the strategy is not part of the revision; what it makes room for fails, and the old one comes back
    stand_in.parity = fails
    scene.patch({"rollout": {"strategy": "Recreate"}})
    scene.wait_condition("UpToDate", "ParityFailed", seconds=60)
    wait_for("the verified revision serves again", lambda: is_true(scene.model(), "Available"), seconds=60)
    assert {revision(pod) for pod in scene.pods()} == {first}
    assert ready(scene).isdisjoint(pods)
    stand_in.parity = passes
    scene.patch({"rollout": {"strategy": "RollingUpdate"}, "serving": {"maxModelLen": None}})
    assert scene.wait_current("Ready", seconds=60)["status"]["activeRevision"] == first
    found = scene.deployment()
    assert found is not None
    assert found["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }


def test_optional_children_follow_their_fields_and_the_pvc_its_policy(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    create = {"create": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}, "policy": "Retain"}
    network = {"networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}}
    scene.apply_model(storage=create, network=network, serving={"replicas": 2}, rollout={"minReadySeconds": 0})
    scene.wait_current("Ready", seconds=60)
    wait_for("two pods", lambda: len(ready(scene)) == 2, seconds=90)
    assert scene.kube.get(POLICY, "minilm", scene.name)
    assert scene.kube.get(BUDGET, "minilm", scene.name)
    scene.patch({"network": None, "serving": {"replicas": 1}, "storage": {"policy": "Delete"}})
    for kind in (POLICY, BUDGET):
        wait_for(
            f"{kind[1]} goes", partial(lambda kind: not scene.kube.get(kind, "minilm", scene.name), kind), seconds=90
        )
    claim = ("minilm-artifacts", scene.name)

    def owned() -> bool:
        return "ownerReferences" in (scene.kube.get(CLAIM, *claim) or {})["metadata"]

    wait_for("the claim is owned", owned, seconds=90)
    scene.kube.delete(("encoders.dev/v1alpha1", "EncoderModel"), "minilm", scene.name)
    # the claim's protection ends with its pods; nothing waits for the operator
    operator.kill()

    def over() -> bool:
        found = scene.kube.get(CLAIM, *claim)
        return not scene.pods() and (found is None or "deletionTimestamp" in found["metadata"])

    wait_for("all of it goes", over, seconds=60)
