"""What befalls prep pods, on real Jobs and a real garbage collector of pods: one Job each, which says what it waits for, and goes on."""

import secrets
from collections.abc import Callable

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import JOB, MODELS, POD, Body, Kube, condition, made
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import NODE, SILENCE, StandIn, Unschedulable, never, prepared, settle

NO_PODS = {"accelerator": "cpu", "replicas": 0}
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
LOW = "The node was low on resource: ephemeral-storage."
NO_IMAGE = 'Back-off pulling image "encoder-operator/prep": not found'


def reported(scene: Scene, name: str = "minilm") -> Body:
    return condition(scene.model(name), "ArtifactReady")


def component(pod: Body) -> str:
    return str(pod["metadata"]["labels"]["encoders.dev/component"])


def running_pod(scene: Scene, name: str = "minilm", *, besides: str = "") -> Body:
    """The model's prep pod that runs, once it does."""

    def running() -> Body | None:
        pods = [pod for pod in scene.pods(name, "prep") if pod["metadata"]["uid"] != besides]
        return next((pod for pod in pods if pod["status"].get("phase") == "Running"), None)

    found: Body = wait_for(f"a running prep pod of {name}", running, seconds=90)
    return found


def silent_and_given_up(scene: Scene, stand_in: StandIn, pod: Body) -> str:
    """The node is silent, what it should do is done without it, and a user gives it up: no quarantine."""
    node = pod["spec"]["nodeName"]
    stand_in.silence(node)
    lost = scene.wait_condition("ArtifactReady", "NodeLost", seconds=90)
    assert f"on node {node}, which is not responding ({SILENCE})" in lost["message"]
    # as the controller manager does after five minutes; no kubelet says that the pod has ended
    scene.evict(pod["metadata"]["name"])
    settle()
    assert [entry["metadata"]["uid"] for entry in scene.pods(component="prep")] == [pod["metadata"]["uid"]]
    scene.kube.run("taint", "nodes", node, "node.kubernetes.io/out-of-service=gone:NoExecute")
    return "not responding"


def deleted(scene: Scene, stand_in: StandIn, pod: Body) -> str:
    """The Node is deleted, as cloud providers do; the pods' garbage collector waits for forty seconds and more."""
    node = pod["spec"]["nodeName"]
    stand_in.lost.add(node)
    scene.kube.delete(NODE, node)
    scene.wait_condition("ArtifactReady", "NodeLost", seconds=90)
    return f"on node {node}, which is gone"


@pytest.mark.fault(
    "the node of the prep pod stops responding, or is deleted",
    "`NodeLost`, with the node's name",
    "after Kubernetes has evicted the pod, the same Job creates another one; it does not count as a failed attempt",
)
@pytest.mark.parametrize("lose", [silent_and_given_up, pytest.param(deleted, marks=pytest.mark.soak)])
def test_a_lost_node_is_reported_and_the_same_job_continues(
    lose: Callable[[Scene, StandIn, Body], str],
    kube: Kube,
    scene: Scene,
    stand_in: StandIn,
    operator: OperatorProcess,
) -> None:
    node = f"prep-{secrets.token_hex(3)}"
    stand_in.add_node(node)
    stand_in.prep, stand_in.place = never, lambda pod: node if component(pod) == "prep" else "node-1"
    try:
        with kube.watching(JOB, scene.name, "encoders.dev/component=prep") as jobs:
            scene.apply_model(prepare={"backoffLimit": 0})
            first = running_pod(scene)
            scene.wait_condition("ArtifactReady", "Preparing", seconds=90)
            stand_in.place = lambda _: "node-1"
            words = lose(scene, stand_in, first)
            assert words in reported(scene)["message"]
            assert first["metadata"]["name"] in reported(scene)["message"]
            stand_in.prep = prepared
            scene.wait_current("Ready", seconds=150)
        assert len(made(jobs)) == 1
        assert not scene.jobs("prep")[0]["status"].get("failed")
    finally:
        kube.delete(NODE, node)


@pytest.mark.fault(
    "the kubelet evicts the prep pod because the node is short of resources",
    "`Evicted` with the kubelet's message, then `Preparing`",
    "the same Job creates another pod; it does not count as a failed attempt",
)
@pytest.mark.fault(
    "the prep image cannot be pulled",
    "`ImagePullFailed` with the kubelet's message",
    "continues automatically when the image is available",
)
@pytest.mark.fault(
    "no node can run the prep pod",
    "`Unschedulable` or `ClaimPending` with the scheduler's message",
    "continues automatically when a node can",
)
def test_an_evicted_or_blocked_pod_is_reported_and_the_same_job_continues(
    kube: Kube, scene: Scene, stand_in: StandIn, stopped_operator: OperatorProcess
) -> None:
    # all three are prepared at the same time
    stopped_operator.start(ENCODER_MAX_PREPS_PER_NAMESPACE="3")
    stopped_operator.wait_ready()

    def place(pod: Body) -> str | Unschedulable:
        homeless = pod["metadata"]["labels"]["encoders.dev/model"] == "homeless"
        return Unschedulable(UNBOUND) if homeless else "node-1"

    stand_in.prep, stand_in.place = never, place
    with (
        kube.watching(JOB, scene.name, "encoders.dev/component=prep") as jobs,
        kube.watching(MODELS, scene.name) as states,
    ):
        for name in ("evicted", "imageless", "homeless"):
            scene.apply_model(name, serving=NO_PODS, prepare={"backoffLimit": 0})
        pod = running_pod(scene, "imageless")
        stand_in.wait_container(pod, "ImagePullBackOff", NO_IMAGE)
        assert scene.wait_condition("ArtifactReady", "ImagePullFailed", "imageless")["message"] == NO_IMAGE
        assert scene.wait_condition("ArtifactReady", "ClaimPending", "homeless")["message"] == UNBOUND
        first = running_pod(scene, "evicted")
        stand_in.evict(first, LOW)
        running_pod(scene, "evicted", besides=first["metadata"]["uid"])
        # the pod stays to be seen, and what became of it is reported while the next one runs
        wait_for("its end reported", lambda: LOW in reported(scene, "evicted").get("message", ""), seconds=90)
        stand_in.prep, stand_in.place = prepared, lambda _: "node-1"
        stand_in.start(kube.get(POD, pod["metadata"]["name"], scene.name) or pod)
        for name in ("evicted", "imageless", "homeless"):
            scene.wait_current("ArtifactReady", name, seconds=60)
    for name in ("evicted", "imageless", "homeless"):
        assert len(made(jobs, f"encoders.dev/model={name}")) == 1, name
        assert not scene.jobs("prep", name)[0]["status"].get("failed")
    conditions = [condition(state, "ArtifactReady") for state in states if state["metadata"]["name"] == "evicted"]
    assert {found["reason"] for found in conditions if found} <= {"Preparing", "Evicted", "Prepared"}
    assert not [found for found in conditions if "failed" in found.get("message", "")]


@pytest.mark.complaint(7)
@pytest.mark.fault(
    "more models are created than may be prepared at the same time, and the operator is killed meanwhile",
    "`Queued`",
    "never more running Jobs than allowed; all models are prepared in the end",
)
def test_never_more_preparations_than_allowed(
    no_other_preps: None, kube: Kube, scene: Scene, stand_in: StandIn, stopped_operator: OperatorProcess
) -> None:
    names, limit = [f"m{number}" for number in range(6)], 2
    stand_in.prep = never
    stopped_operator.start(ENCODER_MAX_PREPS=str(limit), ENCODER_MAX_PREPS_PER_NAMESPACE=str(limit))
    stopped_operator.wait_ready()

    def queued() -> int:
        return sum(reported(scene, name).get("reason") == "Queued" for name in names)

    with kube.watching(JOB, scene.name, "encoders.dev/component=prep") as jobs:
        for name in names:
            scene.apply_model(name, serving=NO_PODS)
        wait_for("the others in line", lambda: queued() == len(names) - limit, seconds=90)
        stopped_operator.restart(ENCODER_MAX_PREPS=str(limit), ENCODER_MAX_PREPS_PER_NAMESPACE=str(limit))
        settle(1)
        assert (len(made(jobs)), queued()) == (limit, len(names) - limit)
        stand_in.prep = prepared
        for name in names:
            scene.wait_current("ArtifactReady", name, seconds=60)
    assert len(made(jobs)) == len(names)
    assert most_at_once(jobs) == limit
    lines = [line for line in stopped_operator.lines() if line.get("event") in ("apply", "delete", "gate")]
    # what is left of other tests is this operator's too
    about = [(line["namespace"], line["name"]) for line in lines]
    assert {name for namespace, name in about if namespace == scene.name} == set(names)


@pytest.mark.fault(
    "the ConfigMap of a label set, or its key, does not exist",
    "`LabelSetMissing` with the names of set, ConfigMap and key",
    "no prep Job is created before it exists; then the preparation starts without an edit",
)
def test_a_missing_label_set_is_named_and_taken_when_it_is_there(
    kube: Kube, scene: Scene, stand_in: StandIn, operator: OperatorProcess
) -> None:
    wanted = {"name": "cities", "sha256": "1" * 64, "configMapRef": {"name": "places", "key": "cities.jsonl"}}
    scene.apply_model(plugin="deberta_gliner_linker", labelSets=[wanted], serving=NO_PODS)
    needed = "spec.labelSets: label set cities needs key cities.jsonl"
    found = scene.wait_condition("ArtifactReady", "LabelSetMissing", seconds=90)
    assert found["message"] == f"{needed} of ConfigMap places, which does not exist in namespace {scene.name}"
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "places", "namespace": scene.name}}
    kube.apply({**config_map, "data": {"towns.jsonl": ""}})
    has_not = f"{needed}, which ConfigMap places in namespace {scene.name} does not have"
    wait_for("the key that is missing", lambda: reported(scene).get("message") == has_not, seconds=90)
    assert scene.jobs("prep") == []
    kube.apply({**config_map, "data": {"cities.jsonl": '"Rome"\n'}})
    scene.wait_current("ArtifactReady", seconds=60)
    events = kube.all(("v1", "Event"), scene.name)
    warned = [event["message"] for event in events if event["reason"] == "LabelSetMissing"]
    assert found["message"] in warned


def most_at_once(states: list[Body]) -> int:
    """How many Jobs were unfinished at the same time, by the order in which their states came."""
    unfinished: set[str] = set()
    most = 0
    for job in states:
        conditions = job.get("status", {}).get("conditions") or []
        over = any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions)
        (unfinished.discard if over else unfinished.add)(job["metadata"]["uid"])
        most = max(most, len(unfinished))
    return most
