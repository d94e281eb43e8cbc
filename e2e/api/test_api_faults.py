"""The API server at its worst: gone, busy, slow, silent, forgetful, forbidding. Each time: it converges, and nothing is made twice."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.fault_proxy import Fault, FaultProxy
from encoder_platform.kube import JOB, Body, Kube, condition, made
from encoder_platform.operator_process import NAME, OperatorProcess
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

ROLE = ("rbac.authorization.k8s.io/v1", "ClusterRole")


@pytest.fixture
def jobs(kube: Kube, scene: Scene) -> Iterator[list[Body]]:
    """Every Job that there has ever been, also one that was made twice and cleaned up."""
    with kube.watching(JOB, scene.name) as seen:
        yield seen


def one_of_each(scene: Scene, jobs: list[Body]) -> None:
    assert [len(scene.jobs("prep")), len(scene.jobs("parity")), len(scene.pods())] == [1, 1, 1]
    assert [len(made(jobs, f"encoders.dev/component={which}")) for which in ("prep", "parity")] == [1, 1]


def no_stack_traces(operator: OperatorProcess) -> None:
    traced = [line for line in operator.lines() if "exception" in line or "Traceback" in str(line.get("event"))]
    assert traced == []


def some(status: int, every: int, **more: object) -> Callable[[str, str], Fault | None]:
    """Let one request of n fail: by chance, since what is counted may fall on the same request of every look."""
    chance = random.Random(1)

    def fault(method: str, path: str) -> Fault | None:
        # a read is never in conflict with anything
        if status == 409 and method in ("GET", "WATCH"):
            return None
        return Fault(status, **more) if chance.random() < 1 / every and "leases" not in path else None  # type: ignore[arg-type]

    return fault


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(some(409, 3), id="409"),
        # each status has unit tests: client/tests/test_client.py, controller/tests/test_workqueue.py
        pytest.param(some(429, 4, headers={"Retry-After": "1"}), id="429", marks=pytest.mark.soak),
        pytest.param(some(500, 3), id="500", marks=pytest.mark.soak),
        pytest.param(some(500, 4, after=True), id="500-after-the-write"),
        pytest.param(some(0, 1, seconds=0.3), id="slow"),
    ],
)
@pytest.mark.fault(
    "the API server responds with 409, 429 or 500, or late, to reads, watches and writes, from the operator's start on",
    "nothing",
    "requests are retried, and nothing is created twice",
)
def test_errors_and_slowness(
    fault: Callable[[str, str], Fault | None],
    proxy: FaultProxy,
    behind: OperatorProcess,
    scene: Scene,
    stand_in: StandIn,
    jobs: list[Body],
) -> None:
    proxy.fault = fault
    behind.start()
    behind.wait_ready()
    scene.apply_model()
    # the delays between retries are random, and add up
    scene.wait_current("Ready", seconds=180)
    one_of_each(scene, jobs)
    no_stack_traces(behind)


def test_a_retry_after_is_obeyed(proxy: FaultProxy, behind: OperatorProcess, scene: Scene, stand_in: StandIn) -> None:
    behind.start()
    behind.wait_ready()

    def busy(method: str, path: str) -> Fault | None:
        return Fault(429, {"Retry-After": "240"}) if method == "PATCH" and scene.name in path else None

    proxy.fault = busy
    scene.apply_model()
    wait_for("one refusal", lambda: any(status == 429 for *_, status in proxy.requests), seconds=90)
    # a read may fail first, on a busy machine
    failed = wait_for(
        "the refused reconcile",
        lambda: [
            line for line in behind.lines() if line.get("event") == "reconcile failed" and line["retry_in"] >= 240
        ],
        seconds=60,
    )
    assert failed[0]["namespace"] == scene.name
    assert failed[0]["name"] == "minilm"


@pytest.mark.fault("the API server restarts", "nothing", "watches reconnect, and reconciles continue")
@pytest.mark.fault("etcd is compacted while the API server is down (410)", "nothing", "everything is listed again")
def test_a_restart_with_compaction(
    plane: Plane, scene: Scene, operator: OperatorProcess, stand_in: StandIn, jobs: list[Body]
) -> None:
    scene.apply_model()
    scene.wait_current("Ready", seconds=90)
    plane.control.stop_api_server()
    plane.control.start_api_server()
    scene.patch_serving({"replicas": 2})
    plane.control.compact_etcd()
    plane.control.restart_api_server()
    wait_for("the edit done", lambda: (scene.deployment() or {})["spec"]["replicas"] == 2, seconds=90)
    scene.wait_current("Ready", seconds=90)
    assert len(made(jobs, "encoders.dev/component=prep")) == 1
    assert not operator.dead
    no_stack_traces(operator)


@pytest.mark.fault("RBAC is removed", "`WriteRefused`", "pods keep serving; reconciles continue when RBAC is restored")
def test_permissions_taken_away_and_given_back(
    kube: Kube, scene: Scene, operator: OperatorProcess, stand_in: StandIn, jobs: list[Body]
) -> None:
    role = kube.get(ROLE, NAME)
    assert role is not None
    without = json.loads(json.dumps(role["rules"]))
    for rule in without:
        if "jobs" in rule["resources"]:
            rule["verbs"] = ["get", "list", "watch"]
    kube.patch(ROLE, NAME, "", {"rules": without})
    try:
        scene.apply_model()
        refused = scene.wait_condition("Progressing", "WriteRefused", seconds=60)
        assert "forbidden" in refused["message"]
    finally:
        kube.patch(ROLE, NAME, "", {"rules": role["rules"]})
    scene.wait_current("Ready", seconds=120)
    one_of_each(scene, jobs)
    no_stack_traces(operator)


def test_nothing_of_kopf_is_left_on_any_object(scene: Scene, operator: OperatorProcess, stand_in: StandIn) -> None:
    scene.apply_model()
    live = scene.wait_current("Ready", seconds=90)
    assert "finalizers" not in live["metadata"]
    found = [live, scene.deployment(), *scene.jobs("prep"), *scene.jobs("parity"), *scene.pods()]
    assert not [body for body in found if "kopf" in json.dumps(body).lower()]
    assert condition(live, "Ready")["status"] == "True"


# each life makes two writes: in one case they end after the second, fourth … write of all, in the other after the first, third …
@pytest.mark.parametrize(
    ("hook", "first", "later"),
    [
        # killed before a write leaves what killed after the write before it leaves
        pytest.param("ENCODER_CRASH_BEFORE_WRITE", "3", "3", id="before", marks=pytest.mark.soak),
        pytest.param("ENCODER_CRASH_AFTER_WRITE", "1", "2", id="after"),
    ],
)
@pytest.mark.fault(
    "the operator is killed before or after any single write",
    "nothing",
    "the next process continues from the existing objects",
)
def test_killed_at_every_write(
    hook: str,
    first: str,
    later: str,
    scene: Scene,
    stopped_operator: OperatorProcess,
    stand_in: StandIn,
    jobs: list[Body],
) -> None:
    scene.apply_model()
    lives = 0
    while scene.model().get("status", {}).get("phase") != "Serving":
        dies: dict[str, Any] = {hook: later if lives else first}
        stopped_operator.start(**dies)
        wait_for(
            "dead or done",
            lambda: stopped_operator.dead or scene.model().get("status", {}).get("phase") == "Serving",
            seconds=90,
        )
        lives += 1
        assert lives < 40
        if not stopped_operator.dead:
            stopped_operator.kill()
    assert lives >= 3
    one_of_each(scene, jobs)
