"""Two operators and one Lease: who works, who waits, and what one that was frozen does when it wakes."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.kube import Body, Kube
from encoder_platform.operator_process import NAMESPACE, OperatorProcess, operator_process
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn, never, prepared

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
    return (lease or {}).get("spec", {}).get("holderIdentity")


def wait_holder(kube: Kube, identity: str, seconds: float) -> None:
    wait_for(f"{identity} holds the lease", lambda: holder(kube) == identity, seconds=seconds)


def writes(operator: OperatorProcess) -> list[Body]:
    return [line for line in operator.lines() if line.get("event") in ("apply", "delete", "gate")]


@pytest.mark.fault("operator killed (SIGKILL), a second one waits", "nothing", "the second works within 20 s")
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
        wait_for("the edit done", lambda: (scene.deployment() or {})["spec"]["replicas"] == 2, seconds=20)
        took = time.monotonic() - killed
        print(f"fail-over: {took:.1f} s from SIGKILL to the next write")
        # told to end, it gives the lease back, and the next one need not wait for its end
        assert second.stop() == 0
        assert holder(scene.kube) is None
        first.start()
        wait_holder(scene.kube, "first", 30)


@pytest.mark.fault(
    "operator frozen (SIGSTOP) past its lease, then woken", "nothing", "its writes are not sent, it exits with 1"
)
def test_one_that_was_frozen_past_its_lease_changes_nothing(scene: Scene, stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.prep = lambda pod: (never if pod["metadata"]["namespace"] == scene.name else prepared)(pod)
    with elected(scene.kube, tmp_path, "frozen", "second") as (frozen, second):
        frozen.start()
        wait_holder(scene.kube, "frozen", 30)
        scene.apply_model()
        wait_for("a prep Job", lambda: scene.jobs("prep"), seconds=30)
        before = len(writes(frozen))
        # in the middle of things: it was woken by this edit, or will have been
        scene.patch({"source": {"huggingFace": {"revision": "2" * 40}}})
        frozen.freeze()
        second.start()
        wait_holder(scene.kube, "second", 60)
        stand_in.prep = prepared
        scene.wait_current("Ready", seconds=60)
        stopped = len(writes(frozen))
        state = [scene.model(), scene.deployment(), scene.jobs("prep"), scene.jobs("parity")]
        scene.patch_serving({"replicas": 3})
        frozen.thaw()
        assert frozen.process.wait(20) == 1
        assert len(writes(frozen)) - stopped <= 1, "it went on deciding"
        assert stopped - before <= 3
        assert holder(scene.kube) == "second"
        wait_for("the edit done", lambda: (scene.deployment() or {})["spec"]["replicas"] == 3, seconds=30)
        assert [job["metadata"]["uid"] for job in scene.jobs("prep")] == [job["metadata"]["uid"] for job in state[2]]
        managers = scene.model()["metadata"]["managedFields"]
        assert {entry["manager"] for entry in managers} <= {"encoder-e2e", "encoder-operator", "OpenAPI-Generator"}


@pytest.mark.fault("API server away for longer than the lease", "nothing", "the leader exits with 1, and starts again")
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
        wait_for("it leads again", lambda: "encoder_leader 1.0" in alone.ask("metrics")[1], seconds=30)
