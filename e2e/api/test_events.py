"""Events on a real API server: each fact is reported once, however often the operator reconciles, restarts, or observes it again."""

import time
from collections import Counter

from encoder_node.waiting import wait_for
from encoder_platform.kube import Body
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

EVENT = ("v1", "Event")


def events(scene: Scene) -> Counter[tuple[str, str]]:
    """What Events say about the model, and how often: objects, and repetitions that are counted on one object."""
    found: Counter[tuple[str, str]] = Counter()
    for event in scene.kube.all(EVENT, scene.name):
        if event["involvedObject"]["kind"] == "EncoderModel":
            found[event["reason"], event["message"]] += event.get("count") or 1
    return found


def flap(scene: Scene, stand_in: StandIn, pod: Body) -> None:
    """One crash, and the container ready again."""
    stand_in.restart_container(pod, waiting="CrashLoopBackOff")
    scene.wait_condition("Degraded", "CrashLoop", seconds=60)
    live = scene.kube.get(("v1", "Pod"), pod["metadata"]["name"], scene.name)
    assert live is not None
    stand_in.restart_container(live)
    scene.wait_condition("Degraded", "AsExpected", seconds=60)


def test_each_event_is_posted_once(scene: Scene, stand_in: StandIn, operator: OperatorProcess) -> None:
    scene.apply_model(rollout={"minReadySeconds": 0})
    scene.wait_current("Ready", seconds=60)
    (pod,) = scene.pods()
    flap(scene, stand_in, pod)
    wait_for(
        "the event of the crash", lambda: [reason for reason, _ in events(scene) if reason == "CrashLoop"], seconds=60
    )
    first = events(scene)
    for _ in range(2):
        flap(scene, stand_in, pod)
        operator.restart()
    # a repeated event would be written by the reconcile that observes it
    time.sleep(1)
    assert events(scene) == first
    assert set(first.values()) == {1}
