"""Two operators and one Lease: who works, who waits, and what one that was frozen does when it continues."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.fault_proxy import Fault, FaultProxy, through
from encoder_platform.kube import REVISION, Body, Kube
from encoder_platform.operator_process import (
    NAMESPACE,
    OperatorProcess,
    kubeconfig_of_the_operator,
    operator_process,
)
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import Ended, StandIn, never, passes, prepared, verdict

LEASE = ("coordination.k8s.io/v1", "Lease")


@contextmanager
def elected(kube: Kube, folder: Path, *identities: str) -> Iterator[list[OperatorProcess]]:
    """Operators that want the Lease, not started yet."""
    kube.delete(LEASE, "encoder-operator", NAMESPACE)
    with ExitStack() as stack:
        found = []
        for identity in identities:
            (folder / identity).mkdir()
            own = {
                "ENCODER_LEASE": "true",
                "ENCODER_LEASE_NAMESPACE": NAMESPACE,
                "ENCODER_LEASE_SECONDS": "15",
                "ENCODER_IDENTITY": identity,
            }
            found.append(stack.enter_context(operator_process(kube, folder / identity, own)))
        yield found


def holder(kube: Kube) -> str | None:
    lease = kube.get(LEASE, "encoder-operator", NAMESPACE)
    found: str | None = (lease or {}).get("spec", {}).get("holderIdentity")
    return found


def wait_holder(kube: Kube, identity: str, seconds: float) -> None:
    wait_for(f"{identity} holds the lease", lambda: holder(kube) == identity, seconds=seconds)


def proxied(proxy: FaultProxy, kube: Kube, folder: Path) -> Path:
    """The kubeconfig of an operator that reaches the API server by the proxy only."""
    config = folder / "proxied.kubeconfig"
    config.write_text(through(proxy, kubeconfig_of_the_operator(kube)))
    return config


def writes(operator: OperatorProcess) -> list[Body]:
    return [line for line in operator.lines() if line.get("event") in ("apply", "delete", "gate")]


def replicas(scene: Scene) -> int:
    return int((scene.deployment() or {})["spec"]["replicas"])


@pytest.mark.fault(
    "the operator is killed (SIGKILL) while a second one stands by", "nothing", "the second one takes over within 20 s"
)
def test_the_second_takes_over_from_a_killed_one_within_20_seconds(
    scene: Scene, stand_in: StandIn, tmp_path: Path
) -> None:
    with elected(scene.kube, tmp_path, "first", "second") as (first, second):
        first.start()
        wait_holder(scene.kube, "first", 30)
        second.start()
        second.wait_ready()
        scene.apply_model()
        scene.wait_current("Ready", seconds=60)
        assert writes(second) == []
        first.kill()
        killed = time.monotonic()
        scene.patch_serving({"replicas": 2})
        wait_for("the edit done", lambda: replicas(scene) == 2, seconds=60)
        took = time.monotonic() - killed
        print(f"fail-over: {took:.1f} s from SIGKILL to the next write")
        # on SIGTERM it gives the lease back, and the next one need not wait for its end
        assert second.stop() == 0
        assert holder(scene.kube) is None
        first.start()
        wait_holder(scene.kube, "first", 30)


@pytest.mark.fault(
    "the operator is frozen (SIGSTOP) for longer than its Lease, then resumed",
    "nothing",
    "its writes are not sent, or rejected by the API server, and it exits with code 1",
)
def test_one_that_was_frozen_past_its_lease_changes_nothing(
    proxy: FaultProxy, scene: Scene, stand_in: StandIn, tmp_path: Path
) -> None:
    stand_in.prep = lambda pod: (never if pod["metadata"]["namespace"] == scene.name else prepared)(pod)
    with elected(scene.kube, tmp_path, "frozen", "second") as (frozen, second):
        frozen.start(KUBECONFIG=str(proxied(proxy, scene.kube, tmp_path)))
        wait_holder(scene.kube, "frozen", 30)
        scene.apply_model()
        wait_for("a prep Job", lambda: scene.jobs("prep"), seconds=90)
        # in the middle of things: this edit has enqueued the model, or will
        scene.patch({"source": {"huggingFace": {"revision": "2" * 40}}})
        frozen.freeze()
        second.start()
        wait_holder(scene.kube, "second", 60)
        stand_in.prep = prepared
        scene.wait_current("Ready", seconds=60)
        stopped = len(proxy.requests)
        jobs = scene.jobs("prep")
        scene.patch_serving({"replicas": 3})
        frozen.thaw()
        assert frozen.process.wait(20) == 1
        assert holder(scene.kube) == "second"
        wait_for("the edit done", lambda: replicas(scene) == 3, seconds=90)
        # a write may be on its way already; the API server knows that it comes too late
        sent = [request for request in proxy.requests[stopped:] if request[0] not in ("GET", "WATCH", "PAGE")]
        assert [status for _, _, status in sent] in ([], [409])
        assert [job["metadata"]["uid"] for job in scene.jobs("prep")] == [job["metadata"]["uid"] for job in jobs]
        managers = scene.model()["metadata"]["managedFields"]
        assert {entry["manager"] for entry in managers} <= {"encoder-e2e", "encoder-operator", "OpenAPI-Generator"}


@pytest.mark.fault(
    "the API server is down for longer than the Lease", "nothing", "the leader exits with code 1 and restarts"
)
def test_a_leader_that_cannot_renew_ends(plane: Plane, scene: Scene, tmp_path: Path) -> None:
    with elected(scene.kube, tmp_path, "alone") as (alone,):
        alone.start(ENCODER_LEASE_SECONDS="6")
        wait_holder(scene.kube, "alone", 30)
        plane.control.stop_api_server()
        try:
            assert alone.process.wait(30) == 1
        finally:
            plane.control.start_api_server()
        alone.start()
        # the same name: nobody else can be holding it
        alone.wait_ready()
        wait_for("it leads again", lambda: "encoder_leader 1.0" in alone.get("metrics")[1], seconds=90)


@pytest.mark.fault(
    "a write of a former leader arrives after another operator has taken over",
    "nothing",
    "the API server rejects it, because it contains the version that it was based on",
)
def test_a_write_that_comes_late_is_refused(proxy: FaultProxy, scene: Scene, stand_in: StandIn, tmp_path: Path) -> None:
    with elected(scene.kube, tmp_path, "first", "second") as (first, second):
        first.start(KUBECONFIG=str(proxied(proxy, scene.kube, tmp_path)))
        wait_holder(scene.kube, "first", 30)
        scene.apply_model()
        scene.wait_current("Ready", seconds=60)
        passed_on: list[bool] = []
        # only this one: the test before may have left a namespace that is still being deleted, with models of this name
        late = f"/apis/apps/v1/namespaces/{scene.name}/deployments/minilm"

        def fault(method: str, path: str) -> Fault | None:
            if method == "PATCH" and path == late:
                return Fault(until=lambda: bool(passed_on))
            return Fault(503) if proxy.held and "leases" in path else None

        proxy.fault = fault
        scene.patch_serving({"replicas": 2})
        wait_for("a write that is on its way", lambda: proxy.held, seconds=60)
        # not before: on a busy machine it would take a Lease that is renewed late, and write first
        second.start()
        assert first.process.wait(60) == 1
        wait_holder(scene.kube, "second", 60)
        scene.patch_serving({"replicas": 3})
        wait_for("the edit done", lambda: replicas(scene) == 3, seconds=60)
        seen = len(proxy.requests)
        passed_on.append(True)
        answered = wait_for("the late write answered", lambda: proxy.requests[seen:], seconds=60)
        assert [(method, status) for method, _, status in answered] == [("PATCH", 409)]
        assert replicas(scene) == 3


@pytest.mark.fault(
    "the clocks of the operators are wrong, one an hour ahead and one an hour behind",
    "nothing",
    "no operator takes a held Lease; nothing is given up early or retried late",
)
def test_clocks_that_are_wrong_decide_nothing(scene: Scene, stand_in: StandIn, tmp_path: Path) -> None:
    with elected(scene.kube, tmp_path, "ahead", "behind") as (ahead, behind):
        ahead.start(clock_wrong_by=3600)
        wait_holder(scene.kube, "ahead", 30)
        behind.start(clock_wrong_by=-3600)
        behind.wait_ready()
        scene.apply_model(rollout={"progressDeadlineSeconds": 600, "minReadySeconds": 0})
        serving = scene.wait_current("Ready", seconds=60)["status"]["activeRevision"]
        # a candidate that takes its time: by a clock that is ahead the time that it has would be running
        stand_in.loads = lambda pod: pod["metadata"]["labels"].get("encoders.dev/revision") in (None, serving)
        scene.patch_serving({"maxModelLen": 64})
        wait_for("its pod on a node", lambda: any(late(pod, serving) for pod in scene.pods()), seconds=60)
        time.sleep(2)
        records = [record["metadata"].get("annotations", {}) for record in scene.kube.all(REVISION, scene.name)]
        assert [found for found in records if "encoders.dev/stalled" in found] == []
        stand_in.loads = lambda pod: True
        scene.wait_current("Ready", seconds=90)
        assert scene.model()["status"]["activeRevision"] != serving
        assert writes(behind) == []
        assert holder(scene.kube) == "ahead"
        ahead.kill()
        wait_holder(scene.kube, "behind", 60)
        # by a clock that is behind, what was inconclusive would be tried again in an hour, and not in ten seconds
        compared = {job["metadata"]["name"] for job in scene.jobs("parity")}
        stand_in.parity = inconclusive_once(scene)
        scene.patch_serving({"maxModelLen": 65})
        scene.wait_condition("UpToDate", "Inconclusive", seconds=90)
        scene.wait_current("Ready", seconds=90)
        assert len({job["metadata"]["name"] for job in scene.jobs("parity")} - compared) == 2


def inconclusive_once(scene: Scene) -> Callable[[Body], Ended | None]:
    """The next comparison of a model finds nothing out, and all others find what they should."""
    found: list[str] = []

    def compare(pod: Body) -> Ended | None:
        name = pod["metadata"]["name"]
        if pod["metadata"]["namespace"] != scene.name or found not in ([], [name]):
            return passes(pod)
        found[:] = [name]
        return verdict(pod, "Inconclusive")

    return compare


def late(pod: Body, serving: str) -> bool:
    """Whether a pod of another revision has a node."""
    return bool(pod["metadata"]["labels"]["encoders.dev/revision"] != serving and pod["spec"].get("nodeName"))
