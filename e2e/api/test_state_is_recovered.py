"""Status, annotations and the operator's memory can be lost, and its version changed: no pod notices."""

import json

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import DEPLOYMENT, JOB, MODELS, POD, REVISION, Body, condition, is_true
from encoder_platform.operator_process import OperatorProcess, chart_environment
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn, fails, passes

MANY = 10
SERVICE = ("v1", "Service")


def pods(scene: Scene) -> dict[str, str]:
    """Every serving pod, with its spec."""
    found = scene.kube.all(POD, scene.name, "encoders.dev/component=serving")
    return {pod["metadata"]["uid"]: json.dumps(pod["spec"], sort_keys=True) for pod in found}


def all_models(scene: Scene) -> list[Body]:
    return scene.kube.all(MODELS, scene.name)


@pytest.mark.complaint(14)
@pytest.mark.fault(
    "the status and the annotations of the model and all children are wiped, and the operator restarts",
    "the same status as before",
    "no pod changes, and nothing is retried",
)
def test_a_replaced_object_and_a_restarted_operator_change_nothing(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0})
    first = scene.wait_current("Ready", seconds=60)["status"]["activeRevision"]
    # a candidate that failed twice, the second time because a retry was requested
    stand_in.parity = fails
    scene.patch_serving({"maxModelLen": 64})
    scene.wait_condition("UpToDate", "ParityFailed", seconds=60)
    scene.kube.patch(MODELS, "minilm", scene.name, {"metadata": {"annotations": {"encoders.dev/retry": "1"}}})
    wait_for("a second comparison", lambda: len(scene.jobs("parity")) == 3, seconds=60)
    scene.wait_condition("UpToDate", "ParityFailed", seconds=60)
    wait_for("the candidate's pods are gone", lambda: len(scene.pods()) == 1, seconds=90)
    before, records = pods(scene), len(scene.kube.all(REVISION, scene.name))
    operator.kill()
    stand_in.parity = passes
    live = scene.model()
    bare = {key: live[key] for key in ("apiVersion", "kind", "spec")}
    bare["metadata"] = {"name": "minilm", "namespace": scene.name}
    scene.kube.run("replace", "-f", "-", stdin=json.dumps(bare))
    empty = [{"op": "remove", "path": "/status"}]
    scene.kube.run(
        *("-n", scene.name, "patch", "em/minilm", "--subresource=status", "--type=json", "-p", json.dumps(empty))
    )
    for kind in (REVISION, DEPLOYMENT, SERVICE, JOB, POD):
        for child in scene.kube.all(kind, scene.name, "encoders.dev/model=minilm"):
            if child["metadata"].get("annotations"):
                unsaid = {"metadata": {"annotations": None}}
                scene.kube.patch(kind, child["metadata"]["name"], scene.name, unsaid)
    operator.restart()
    scene.wait_condition("UpToDate", "ParityFailed", seconds=90)
    found = scene.model()["status"]
    assert found["activeRevision"] == first
    assert condition({"status": found}, "Verified")["status"] == "True"
    assert pods(scene) == before
    assert len(scene.jobs("parity")) == 3
    assert len(scene.kube.all(REVISION, scene.name)) == records


@pytest.mark.complaint(9)
def test_another_version_of_the_operator_changes_no_pod_of_ten_models(
    scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    for number in range(MANY):
        serving = {"maxModelLen": 64 + number % 3, "replicas": 1 + number % 2}
        scene.apply_model(f"m{number}", serving=serving, rollout={"minReadySeconds": 0})
    wanted = sum(1 + number % 2 for number in range(MANY))
    wait_for("all Ready", lambda: all(is_true(m, "Ready") for m in all_models(scene)), seconds=120)
    wait_for("all pods", lambda: len(pods(scene)) == wanted, seconds=60)
    wait_for(
        "all of them ready", lambda: sum(m["status"]["readyReplicas"] for m in all_models(scene)) == wanted, seconds=60
    )
    before = pods(scene)
    generations = [scene.deployment(f"m{number}")["metadata"]["generation"] for number in range(MANY)]  # type: ignore[index]
    images = json.loads(chart_environment(scene.kube)["ENCODER_IMAGES"])
    engines = {a: {plugin: f"{image}-newer" for plugin, image in of.items()} for a, of in images["engine"].items()}
    newer = {**images, "engine": engines}
    operator.restart(
        ENCODER_IMAGES=json.dumps(newer),
        ENCODER_SERVING_RESOURCES=json.dumps({"requests": {"cpu": "3", "memory": "5Gi"}}),
        ENCODER_PREP_RESOURCES=json.dumps({"requests": {"cpu": "3"}}),
        ENCODER_PREP_STALL_SECONDS="33",
    )
    wait_for("all reported", lambda: all(is_true(m, "UpdateAvailable") for m in all_models(scene)), seconds=60)
    assert all(is_true(model, "Ready") for model in all_models(scene))
    assert pods(scene) == before
    now = [scene.deployment(f"m{number}")["metadata"]["generation"] for number in range(MANY)]  # type: ignore[index]
    assert now == generations
    scene.kube.patch(MODELS, "m0", scene.name, {"metadata": {"annotations": {"encoders.dev/update": "1"}}})
    wait_for("m0 takes them", lambda: not is_true(scene.model("m0"), "UpdateAvailable"), seconds=60)
    assert scene.wait_current("Ready", "m0", seconds=60)
    wait_for("the former pods are gone", lambda: len(pods(scene)) == wanted, seconds=60)
    # an annotation that goes does not bring the old ones back
    before = pods(scene)
    scene.kube.patch(MODELS, "m0", scene.name, {"metadata": {"annotations": {"encoders.dev/update": None}}})
    operator.restart(ENCODER_IMAGES=json.dumps(newer))
    scene.wait_current("Ready", "m0", seconds=90)
    assert pods(scene) == before


def test_paused_means_hands_off(scene: Scene, stand_in: StandIn, operator: OperatorProcess) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0})
    scene.wait_current("Ready", seconds=60)
    scene.patch({"paused": True, "serving": {"maxModelLen": 64, "replicas": 2}})
    scene.wait_condition("UpToDate", "Paused", seconds=90)
    found = scene.deployment()
    assert found is not None
    # what others do meanwhile is left as it is, and a verified pod keeps serving
    scene.kube.patch(("apps/v1", "Deployment"), "minilm", scene.name, {"spec": {"replicas": 3}})
    wait_for("three pods serve", lambda: sum(is_true(pod, "Ready") for pod in scene.pods()) == 3, seconds=90)
    assert condition(scene.model(), "Progressing")["reason"] == "Paused"
    scene.patch({"paused": False})
    live = scene.wait_current("Ready", seconds=60)
    wait_for("as the spec says", lambda: len(scene.pods()) == 2, seconds=60)
    assert live["status"]["activeRevision"] == deployed(scene)


def deployed(scene: Scene) -> str:
    found = scene.deployment()
    assert found is not None
    return str(found["spec"]["template"]["metadata"]["labels"]["encoders.dev/revision"])
