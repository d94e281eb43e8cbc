"""The progress deadline: when an update that does not start, or crashes when it is compared, is given up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from encoder_operator.controller.tests.test_rollouts import spec
from encoder_operator.state.observed import format_time
from encoder_operator.tests.fake_cluster import Json
from encoder_operator.tests.harness import Harness, annotate, encoder_model


def hang(harness: Harness, **waiting: str) -> None:
    """Let pods that start from now on get a node and never run."""
    state = {"waiting": waiting} if waiting else {}

    def started(pod: Json) -> None:
        pod["status"]["conditions"][0]["status"] = "False"
        pod["status"]["containerStatuses"][0]["state"] = state

    harness.starts = started


def wait_until_overdue(harness: Harness) -> None:
    """Let the candidate's clock say that it has run for a day."""
    for record in harness.fake.of("controllerrevisions", component="revision"):
        annotations = record["metadata"]["annotations"]
        if "encoders.dev/stalled" in annotations:
            annotations["encoders.dev/stalled"] = '{"since":"2026-01-01T00:00:00Z"}'


async def give_up(harness: Harness) -> None:
    """Edit the model, and let the candidate never start, until it is given up."""
    hang(harness)
    harness.change(maxModelLen=64)
    await harness.settle()
    wait_until_overdue(harness)
    await harness.settle()
    harness.starts = lambda pod: None


def clocks(harness: Harness) -> list[str]:
    records = harness.fake.of("controllerrevisions", component="revision")
    found = [record["metadata"]["annotations"].get("encoders.dev/stalled", "") for record in records]
    return [clock for clock in found if clock]


async def test_a_candidate_that_does_not_start_is_given_up_and_the_verified_one_comes_back() -> None:
    harness = Harness()
    await harness.settle()
    first = harness.status["activeRevision"]
    template = copy.deepcopy(harness.fake.of("deployments")[0]["spec"]["template"])
    hang(harness, reason="CrashLoopBackOff", message="back-off")
    harness.change(maxModelLen=64)
    await harness.settle()
    assert len(clocks(harness)) == 1
    assert harness.endpoints() == [first]
    assert harness.condition("UpToDate") == ("False", "RolloutInProgress")
    assert await harness.reconcile() == pytest.approx(1800, abs=60)
    wait_until_overdue(harness)
    await harness.settle()
    assert harness.fake.of("deployments")[0]["spec"]["template"] == template
    assert harness.endpoints() == [first]
    assert len(harness.fake.of("pods", component="serving")) == 1
    for name in ("UpToDate", "Progressing"):
        assert harness.condition(name) == ("False", "ProgressDeadlineExceeded")
    assert harness.condition("Degraded") == ("True", "ProgressDeadlineExceeded")
    assert harness.condition("Available") == ("True", "Serving")
    assert "has not started within 1800 s: " in harness.message("UpToDate")


async def test_a_revision_stays_given_up_until_a_retry_or_a_longer_deadline() -> None:
    harness = Harness()
    await harness.settle()
    await give_up(harness)
    harness.reconciler = harness.operator()
    await harness.settle()
    assert harness.condition("UpToDate") == ("False", "ProgressDeadlineExceeded")
    again: tuple[Callable[[Json], None], ...] = (annotate(retry="1"), spec(rollout={"progressDeadlineSeconds": 3600}))
    for change in again:
        other = copy.deepcopy(harness.fake.objects)
        harness.edit(change)
        await harness.settle()
        assert harness.condition("Ready") == ("True", "Ready")
        assert clocks(harness) == []
        harness.fake.objects = other


async def test_without_anything_to_go_back_to_a_late_candidate_is_left_to_come_round() -> None:
    harness = Harness()
    hang(harness, reason="ErrImagePull", message="no such image")
    await harness.settle()
    wait_until_overdue(harness)
    await harness.settle()
    assert len(harness.fake.of("pods", component="serving")) == 1
    assert harness.condition("Degraded") == ("True", "ProgressDeadlineExceeded")
    assert "no such image" in harness.message("Available")
    harness.run_pods()
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert clocks(harness) == []


def crash(harness: Harness) -> None:
    """Let the container of each pod that is not verified end and wait for its next start."""
    for pod in copy.deepcopy(harness.fake.of("pods", component="serving")):
        if set_ready(pod, ready=False):
            container = pod["status"]["containerStatuses"][0]
            container["restartCount"] = container.get("restartCount", 0) + 1
            ended = {"exitCode": 139, "message": "segmentation fault"}
            container |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
            harness.fake.put("pods", pod)


def restart(harness: Harness) -> None:
    """Let containers that have crashed run again."""
    for pod in copy.deepcopy(harness.fake.of("pods", component="serving")):
        if set_ready(pod, ready=True):
            pod["status"]["containerStatuses"][0]["state"] = {}
            harness.fake.put("pods", pod)


def set_ready(pod: Json, *, ready: bool) -> bool:
    """Set ContainersReady of a pod that is not Ready; return whether that was another value before."""
    conditions = {entry["type"]: entry for entry in pod["status"]["conditions"]}
    before = conditions["ContainersReady"]["status"]
    if conditions["Ready"]["status"] == "True" or before == str(ready):
        return False
    conditions["ContainersReady"]["status"] = str(ready)
    return True


async def candidate_that_is_compared(limit: int = 600) -> Harness:
    """Return a cluster whose model has a candidate with a parity Job in progress beside the revision that serves."""
    harness = Harness()
    harness.edit(spec(rollout={"progressDeadlineSeconds": limit}))
    await harness.settle()
    harness.change(maxModelLen=64)
    for _ in range(3):
        await harness.reconcile()
        harness.deployment()
    await harness.reconcile()
    assert harness.condition("UpToDate")[0] == "False"
    assert len(harness.fake.of("jobs", component="parity")) == 2
    return harness


@pytest.mark.fault(
    "the engine of an update crashes whenever it is compared",
    "`ProgressDeadlineExceeded`",
    "the update is given up after the progress deadline, and the verified revision is restored",
)
async def test_a_candidate_that_crashes_during_each_parity_check_is_given_up() -> None:
    harness = await candidate_that_is_compared()
    first = harness.status["activeRevision"]
    for _ in range(4):
        for change in (crash, restart):
            change(harness)
            await harness.reconcile()
            assert harness.condition("UpToDate")[1] != "ProgressDeadlineExceeded"
        harness.fake.ahead += timedelta(seconds=170)
    crash(harness)
    await harness.settle()
    assert harness.condition("UpToDate") == ("False", "ProgressDeadlineExceeded")
    assert "has crashed repeatedly and was not verified within 600 s: " in harness.message("UpToDate")
    assert "segmentation fault" in harness.message("UpToDate")
    assert harness.endpoints() == [first]


async def test_the_deadline_does_not_run_while_a_restarted_engine_waits_for_its_parity_check() -> None:
    harness = await candidate_that_is_compared()
    for change in (crash, restart):
        change(harness)
        await harness.reconcile()
    harness.fake.ahead += timedelta(days=1)
    await harness.reconcile()
    assert harness.condition("UpToDate")[1] != "ProgressDeadlineExceeded"
    # a readiness probe that fails is no crash
    for pod in copy.deepcopy(harness.fake.of("pods", component="serving")):
        if set_ready(pod, ready=False):
            harness.fake.put("pods", pod)
    await harness.reconcile()
    assert harness.condition("UpToDate")[1] != "ProgressDeadlineExceeded"
    restart(harness)
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")
    assert clocks(harness) == []


async def test_another_pod_than_the_one_that_crashed_has_the_whole_deadline() -> None:
    harness = await candidate_that_is_compared()
    for change in (crash, restart):
        change(harness)
        await harness.reconcile()
    harness.fake.ahead += timedelta(days=1)
    for pod in harness.fake.of("pods", component="serving"):
        if {"type": "Ready", "status": "True"} not in pod["status"]["conditions"]:
            harness.fake.remove("pods", "demo", pod["metadata"]["name"])
    hang(harness)
    harness.deployment()
    await harness.reconcile()
    assert harness.condition("UpToDate")[1] != "ProgressDeadlineExceeded"
    assert await harness.reconcile() == pytest.approx(600, abs=5)


async def test_a_retry_gives_a_pod_that_still_fails_the_whole_deadline_again() -> None:
    harness = Harness()
    hang(harness, reason="ErrImagePull", message="no such image")
    await harness.settle()
    wait_until_overdue(harness)
    await harness.settle()
    assert harness.condition("Degraded") == ("True", "ProgressDeadlineExceeded")
    harness.edit(annotate(retry="1"))
    assert await harness.reconcile() == pytest.approx(1800, abs=5)
    assert harness.condition("Degraded") != ("True", "ProgressDeadlineExceeded")


async def test_the_deadline_does_not_run_for_an_unscheduled_pod() -> None:
    harness = Harness(encoder_model(accelerator="nvidia"))
    harness.fake.put("nodes", {"metadata": {"name": "node", "labels": {"nvidia.com/gpu.product": "NVIDIA-H200"}}})
    await harness.settle()
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    harness.starts = lambda pod: unscheduled(pod, said)
    harness.change(maxModelLen=64)
    await harness.settle()
    assert clocks(harness) == []
    assert harness.condition("Progressing") == ("False", "InsufficientGPU")
    assert harness.message("Progressing") == said
    assert harness.condition("Available") == ("True", "Serving")
    assert await harness.reconcile() is None
    harness.run_pods()
    await harness.settle()
    assert harness.condition("Ready") == ("True", "Ready")


def unscheduled(pod: Json, said: str) -> None:
    del pod["spec"]["nodeName"]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod["status"] = {"phase": "Pending", "conditions": [condition, {"type": "Ready", "status": "False"}]}


async def test_the_clock_does_not_run_while_a_comparison_can_not_be_made() -> None:
    harness = Harness()
    await harness.settle()
    first = harness.status["activeRevision"]
    harness.parity = lambda job: {"result": "Inconclusive", "message": "connection refused"}
    harness.change(maxModelLen=64)
    await harness.settle()
    assert clocks(harness) == []
    assert harness.condition("UpToDate") == ("False", "Inconclusive")
    assert harness.endpoints() == [first]


async def test_a_clock_that_ran_is_set_back_when_the_pod_starts() -> None:
    harness = Harness()
    await harness.settle()
    hang(harness)
    harness.change(maxModelLen=64)
    await harness.settle()
    assert len(clocks(harness)) == 1
    harness.run_pods()
    await harness.settle()
    assert clocks(harness) == []
    assert harness.condition("Ready") == ("True", "Ready")


async def test_a_pod_that_has_just_begun_is_not_worth_a_write() -> None:
    harness = Harness()
    await harness.settle()
    just_now = format_time(datetime.now(UTC))

    def started(pod: Json) -> None:
        pod["metadata"]["creationTimestamp"] = just_now
        pod["status"]["conditions"][0]["status"] = "False"

    harness.starts = started
    harness.change(maxModelLen=64)
    await harness.settle()
    assert clocks(harness) == []
    assert await harness.reconcile() == pytest.approx(30, abs=29)
