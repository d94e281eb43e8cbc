"""Watches that are refused, ended or too old: they begin again, and what happened meanwhile is done, without the resync."""

import time
from typing import Any

import pytest

from encoder_node.waiting import wait_for
from encoder_platform.fault_proxy import Fault, FaultProxy
from encoder_platform.kube import Body
from encoder_platform.operator_process import OperatorProcess
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

WATCHED = {"encodermodels", "pods", "services", "jobs", "deployments"}


def begun(behind: OperatorProcess, scene: Scene) -> None:
    """A running operator whose resync does not come as long as the test is."""
    behind.start(ENCODER_RESYNC_SECONDS="600")
    behind.wait_ready()
    scene.apply_model()
    scene.wait_current("Ready", seconds=60)


def resources(proxy: FaultProxy, method: str, status: int, since: int) -> set[str]:
    """Return the watched resources with a request of this method and status."""
    found = {path.rpartition("/")[2] for how, path, code in proxy.requests[since:] if (how, code) == (method, status)}
    return found & WATCHED


def untraced(operator: OperatorProcess) -> list[Body]:
    return [line for line in operator.lines() if "exception" in line or "Traceback" in str(line.get("event"))]


def replicas(scene: Scene) -> int:
    return int((scene.deployment() or {})["spec"]["replicas"])


@pytest.mark.parametrize("seconds", [6, pytest.param(70, marks=pytest.mark.soak)])
@pytest.mark.fault(
    "all permissions of the operator are removed, including watches, and restored",
    "log messages",
    "it keeps retrying; pods keep serving, and an edit is applied seconds after the permissions are restored",
)
def test_all_permissions_taken_away_and_given_back(
    seconds: int, proxy: FaultProxy, behind: OperatorProcess, scene: Scene, stand_in: StandIn
) -> None:
    begun(behind, scene)
    healthy, proxy.fault = proxy.fault, lambda method, path: Fault(403)
    since = len(proxy.requests)
    proxy.cut()
    scene.patch_serving({"replicas": 2})
    wait_for("every watch refused", lambda: resources(proxy, "WATCH", 403, since) == WATCHED, seconds=60)
    time.sleep(seconds)
    assert replicas(scene) == 1
    assert not behind.dead
    proxy.fault = healthy
    wait_for("the edit done", lambda: replicas(scene) == 2, seconds=60)
    scene.wait_current("Ready", seconds=60)
    assert behind.get("healthz")[0] == 200
    assert untraced(behind) == []


@pytest.mark.fault("a watch gets the error that its version is too old (410)", "nothing", "its kind is listed again")
def test_a_watch_that_is_too_old_lists_again(
    proxy: FaultProxy, behind: OperatorProcess, scene: Scene, stand_in: StandIn
) -> None:
    begun(behind, scene)
    since = len(proxy.requests)
    expired = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
    proxy.send({"type": "ERROR", "object": expired})
    wait_for("everything listed", lambda: resources(proxy, "GET", 200, since) == WATCHED, seconds=60)
    wait_for("everything watched", lambda: resources(proxy, "WATCH", 200, since) == WATCHED, seconds=60)
    scene.patch_serving({"replicas": 2})
    wait_for("the edit done", lambda: replicas(scene) == 2, seconds=60)
    assert untraced(behind) == []


@pytest.mark.fault(
    "a list is read so slowly that the API server forgets its version (410)",
    "nothing",
    "the whole list is read at once",
)
def test_a_list_that_expires_between_two_pages_is_read_whole(
    proxy: FaultProxy, behind: OperatorProcess, scene: Scene, stand_in: StandIn
) -> None:
    refused = [f"m{number:02d}" for number in range(25)]
    for name in refused:
        # more than a page holds, and for a refused one nothing has to be prepared
        scene.apply_model(name, serving={"accelerator": "cpu", "media": {"allowedHosts": ["images.example"]}})
    scene.apply_model()
    proxy.fault = lambda method, path: Fault(410) if method == "PAGE" else None
    behind.start(ENCODER_RESYNC_SECONDS="600")
    behind.wait_ready()
    for name in refused:
        scene.wait_condition("Accepted", "InvalidSpec", name, seconds=120)
    scene.wait_current("Ready", seconds=120)
    assert resources(proxy, "PAGE", 410, 0) >= {"encodermodels"}
    # watches begin where the whole list ended
    scene.patch_serving({"replicas": 2})
    wait_for("the edit done", lambda: replicas(scene) == 2, seconds=60)
    assert not behind.dead
    assert untraced(behind) == []


@pytest.mark.fault(
    "a watch is silently dead (packets are dropped)",
    "nothing",
    "it is reconnected after 70 seconds, and delivers what was missed; the operator is not restarted",
)
def test_a_silent_watch_is_reconnected(
    proxy: FaultProxy, behind: OperatorProcess, scene: Scene, stand_in: StandIn
) -> None:
    begun(behind, scene)
    since = len(proxy.requests)
    proxy.silence()
    scene.patch_serving({"replicas": 2})
    # neither the resync nor an error of the connection helps: the proxy keeps every watch open
    wait_for("the edit done", lambda: replicas(scene) == 2, seconds=240)
    # no list either: the new watches continue where the silent ones ended
    assert resources(proxy, "GET", 200, since) & {"encodermodels"} == set()
    wait_for("every watch begun again", lambda: resources(proxy, "WATCH", 200, since) == WATCHED, seconds=240)
    scene.wait_current("Ready", seconds=60)
    assert behind.get("healthz")[0] == 200
    assert not behind.dead
    assert untraced(behind) == []


@pytest.mark.fault(
    "the operator is shut down while the API server does not respond",
    "nothing",
    "it exits within 5 seconds, and its Lease expires",
)
def test_it_ends_in_time_while_the_api_server_does_not_answer(
    proxy: FaultProxy, behind: OperatorProcess, scene: Scene, stand_in: StandIn
) -> None:
    lease: dict[str, Any] = {
        "ENCODER_LEASE": "true",
        "ENCODER_LEASE_NAMESPACE": "encoder-operator",
        "ENCODER_IDENTITY": scene.name,
    }
    behind.start(**lease)
    behind.wait_ready()
    wait_for("it leads", lambda: "encoder_leader 1.0" in behind.get("metrics")[1], seconds=60)
    scene.apply_model()
    scene.wait_current("Ready", seconds=60)
    # watches go on: it learns of the edit, and what it does then is not answered
    proxy.fault = lambda method, path: None if method == "WATCH" else Fault(until=lambda: behind.dead)
    scene.patch_serving({"replicas": 2})
    # any request of a reconcile: one that was under way may have been caught in its middle
    wait_for("a reconcile that waits", lambda: any("leases" not in path for _, path in proxy.held), seconds=60)
    assert behind.stop(5) == 0
    assert untraced(behind) == []
