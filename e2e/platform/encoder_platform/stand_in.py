"""A scheduler, a kubelet and a provisioner for the API-only control plane: they say what real ones would say, and run nothing.

While `running`, every pod of an EncoderModel is placed, started and ended as the attributes say; each can be replaced at any
time, and single pods can be changed by hand. What the controller manager does (Deployments, Jobs, owners' children) is real.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from encoder_platform.kube import POD, Body, Kube

COMPONENT, MODEL, GATE = "encoders.dev/component", "encoders.dev/model", "encoders.dev/parity"
NODE, CLAIM, VOLUME = ("v1", "Node"), ("v1", "PersistentVolumeClaim"), ("v1", "PersistentVolume")
CLASS = "standard"
SILENCE = "Kubelet stopped posting node status."
ARTIFACT, REFERENCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
PREPARED = {
    "code": "Prepared",
    "digest": ARTIFACT,
    "reference": REFERENCE,
    "revision": "1" * 40,
    "bytes": 91_000_000,
    "files": 9,
    "cases": 48,
}


@dataclass(frozen=True)
class Ended:
    """How a Job's pod ends: its exit code, its report (JSON, or words as they stand), and the kubelet's reason."""

    code: int = 0
    report: Body | str | None = None
    reason: str = ""

    @property
    def message(self) -> str:
        """The termination message."""
        return self.report if isinstance(self.report, str) else json.dumps(self.report or {})


@dataclass(frozen=True)
class Unschedulable:
    """No node for a pod, in the scheduler's words."""

    message: str


def prepared(_: Body) -> Ended | None:
    """Every prep Job succeeds at once."""
    return Ended(0, PREPARED)


def verdict(pod: Body, result: str = "Passed", value: str = "0.9999999", **more: Any) -> Ended:
    """What `encoder-plugins parity` reports on the pod that its arguments name."""
    arguments = pod["spec"]["containers"][0]["args"]
    report = {
        "result": result,
        "artifact": ARTIFACT,
        "reference": REFERENCE,
        "binding": json.loads(arguments[arguments.index("--binding") + 1]),
        "metrics": [{"name": "cosine", "value": value, "threshold": "0.99999"}],
        "cases": 48,
        "worst": ["long-1"],
        "message": result,
    }
    return Ended({"Passed": 0, "Failed": 1}.get(result, 2), {**report, **more})


def passes(pod: Body) -> Ended | None:
    """Every parity Job finds what it should."""
    return verdict(pod)


def fails(pod: Body) -> Ended | None:
    """Every parity Job finds a wrong engine."""
    return verdict(pod, "Failed", "0.8123")


def never(_: Body) -> Ended | None:
    """Jobs that run on."""
    return None


class StandIn:
    """What happens to pods.

    Attributes:
        place: from a pod to its node's name, or to why there is none.
        prep: from a prep Job's running pod to how it ends; None lets it run on.
        parity: the same for parity Jobs.
        loads: whether a serving pod's containers are ready (a pod that is not yet loads on).
        claims: whether claims are bound.
        lost: nodes whose pods have no kubelet any more; whether their Nodes are there is the test's to say.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.place: Callable[[Body], str | Unschedulable] = lambda _: "node-1"
        self.prep: Callable[[Body], Ended | None] = prepared
        self.parity: Callable[[Body], Ended | None] = passes
        self.loads: Callable[[Body], bool] = lambda _: True
        self.claims = True
        self.lost: set[str] = set()
        self._stop = threading.Event()
        self.error: Exception | None = None

    def furnish(self) -> None:
        """Make one node and the default storage class, whose volumes this stand-in makes."""
        self.add_node("node-1")
        self._kube.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
                "provisioner": "kubernetes.io/no-provisioner",
            }
        )

    def add_node(self, name: str, labels: dict[str, str] | None = None, **capacity: str) -> None:
        """Add a node; more capacity by resource name, as in `**{"nvidia.com/gpu": "1"}`."""
        self._kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels or {}}})
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "10000", **capacity}
        ready = {"type": "Ready", "status": "True", "reason": "StandIn", "message": ""}
        self._kube.patch_status(
            NODE, name, None, {"capacity": amounts, "allocatable": amounts, "conditions": [_stamped(ready)]}
        )

    @contextmanager
    def running(self, *, every: float = 0.1) -> Iterator["StandIn"]:
        """Do a step for every pod and claim again and again while the block runs."""
        self._stop.clear()
        thread = threading.Thread(target=self._run, args=(every,), name="stand-in", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(30)
        if self.error is not None:
            raise self.error

    def step(self) -> None:
        """Take one step for every claim and every pod of EncoderModels."""
        if self.claims:
            for claim in self._kube.all(CLAIM, None):
                if not (claim["spec"].get("volumeName") or claim["metadata"].get("deletionTimestamp")):
                    self._provide(claim)
        for pod in self._kube.all(POD, None, MODEL):
            with suppress(_Gone):
                self._pod(pod)

    def start(self, pod: Body) -> None:
        """Say that a placed pod's container runs."""
        now = _now()
        self._say(
            pod,
            {
                "phase": "Running",
                "startTime": now,
                "podIP": "10.244.0.9",
                "podIPs": [{"ip": "10.244.0.9"}],
                "containerStatuses": [_container(pod, {"running": {"startedAt": now}}, ready=False)],
                "conditions": _conditions(Initialized=True, ContainersReady=False, Ready=False),
            },
        )

    def load(self, pod: Body) -> None:
        """Say that the containers of a running pod are ready, and the pod too if its gates are open."""
        running = pod["status"]["containerStatuses"][0]
        status = {**running, "ready": True, "started": True}
        conditions = _conditions(ContainersReady=True, Ready=_gates_open(pod))
        self._say(pod, {"containerStatuses": [status], "conditions": conditions})

    def end(self, pod: Body, ended: Ended) -> None:
        """Say that a pod's container has ended for good."""
        state = {"exitCode": ended.code, "reason": ended.reason or ("Error" if ended.code else "Completed")}
        state |= {"message": ended.message[:4096], "startedAt": _now(), "finishedAt": _now()}
        self._say(
            pod,
            {
                "phase": "Failed" if ended.code else "Succeeded",
                "containerStatuses": [_container(pod, {"terminated": state}, ready=False)],
                "conditions": _conditions(ContainersReady=False, Ready=False),
            },
        )

    def restart_container(self, pod: Body, ended: Ended | None = None, *, waiting: str = "") -> None:
        """Say that a serving pod's container has ended and was started again, or waits (`CrashLoopBackOff`)."""
        ended = ended or Ended(137, "")
        last = {"exitCode": ended.code, "reason": ended.reason or "Error", "message": ended.message[:4096]}
        now = _now()
        state = {"waiting": {"reason": waiting, "message": waiting}} if waiting else {"running": {"startedAt": now}}
        container = _container(pod, state, ready=False)
        before = ((pod.get("status") or {}).get("containerStatuses") or [{}])[0]
        number = before.get("restartCount", 0) + 1
        container |= {
            "restartCount": number,
            "containerID": f"containerd://{pod['metadata']['uid']}-{number}",
            "lastState": {"terminated": {**last, "startedAt": now, "finishedAt": now}},
        }
        conditions = _conditions(ContainersReady=False, Ready=False)
        self._say(pod, {"containerStatuses": [container], "conditions": conditions})

    def wait_container(self, pod: Body, reason: str, message: str = "") -> None:
        """Say that a placed pod's container waits: ImagePullBackOff, ContainerCreating."""
        container = _container(pod, {"waiting": {"reason": reason, "message": message}}, ready=False)
        self._say(pod, {"phase": "Pending", "containerStatuses": [container]})

    def evict(self, pod: Body, message: str = "The node was low on resource: ephemeral-storage.") -> None:
        """Say that the kubelet has evicted a pod because its node needed room."""
        target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message}
        status = {"phase": "Failed", "reason": "Evicted", "message": message}
        killed = {"exitCode": 137, "reason": "Error", "message": "", "startedAt": _now(), "finishedAt": _now()}
        containers = [_container(pod, {"terminated": killed}, ready=False)]
        self._say(pod, {**status, "containerStatuses": containers, "conditions": [_stamped(target)]})

    def silence(self, node: str) -> None:
        """Say what the controller manager says of a node whose kubelet does not report any more, and nothing of its pods."""
        self.lost.add(node)
        ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": SILENCE}
        self._kube.patch_status(NODE, node, None, {"conditions": [_stamped(ready)]})

    def unschedulable(self, pod: Body, message: str) -> None:
        """Say that the scheduler has no node for a pod."""
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._say(pod, {"conditions": [_stamped(scheduled)]})

    def _run(self, every: float) -> None:
        while not self._stop.wait(every):
            try:
                self.step()
            except (ApiException, HTTPError, OSError):
                # the API server is being restarted: a kubelet would go on trying
                continue
            except Exception as error:
                self.error = error
                return

    def _pod(self, pod: Body) -> None:
        meta, status = pod["metadata"], pod.get("status") or {}
        if pod["spec"].get("nodeName") in self.lost:
            return
        if meta.get("deletionTimestamp"):
            self._kube.delete(POD, meta["name"], meta["namespace"], grace=0)
            return
        phase = status.get("phase", "Pending")
        if phase in ("Succeeded", "Failed"):
            return
        if not pod["spec"].get("nodeName"):
            self._placed(pod)
        elif phase == "Pending":
            if not status.get("containerStatuses"):
                self.start(pod)
        else:
            self._running(pod)

    def _placed(self, pod: Body) -> None:
        where = self.place(pod)
        if isinstance(where, Unschedulable):
            if _condition(pod, "PodScheduled").get("message") != where.message:
                self.unschedulable(pod, where.message)
            return
        with _gone():
            self._kube.bind(pod["metadata"]["name"], pod["metadata"]["namespace"], where)

    def _running(self, pod: Body) -> None:
        component = pod["metadata"]["labels"].get(COMPONENT)
        if component in ("prep", "parity"):
            ended = (self.prep if component == "prep" else self.parity)(pod)
            if ended is not None:
                self.end(pod, ended)
            return
        container = pod["status"]["containerStatuses"][0]
        ready = _condition(pod, "ContainersReady").get("status") == "True"
        if "running" not in (container.get("state") or {}):
            return
        if ready != self.loads(pod) or (_condition(pod, "Ready").get("status") == "True") != (
            ready and _gates_open(pod)
        ):
            if self.loads(pod):
                self.load(pod)
            else:
                status = {**container, "ready": False}
                self._say(
                    pod,
                    {"containerStatuses": [status], "conditions": _conditions(ContainersReady=False, Ready=False)},
                )

    def _say(self, pod: Body, status: Body) -> None:
        with _gone():
            self._kube.patch_status(POD, pod["metadata"]["name"], pod["metadata"]["namespace"], status)

    def _provide(self, claim: Body) -> None:
        meta = claim["metadata"]
        with suppress(ApiException):
            self._kube.apply(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"pv-{meta['uid']}"},
                    "spec": {
                        "capacity": claim["spec"]["resources"]["requests"],
                        "accessModes": claim["spec"]["accessModes"],
                        "storageClassName": claim["spec"].get("storageClassName", ""),
                        "persistentVolumeReclaimPolicy": "Delete",
                        "hostPath": {"path": "/nowhere"},
                        "claimRef": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
                    },
                }
            )


class _Gone(Exception):  # noqa: N818 - no error: what was to be changed is not there any more
    pass


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        if error.status in (404, 409):
            raise _Gone from error
        raise


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _stamped(condition: Body) -> Body:
    return {**condition, "lastTransitionTime": _now()}


def _conditions(**states: bool) -> list[Body]:
    return [_stamped({"type": name, "status": str(state)}) for name, state in states.items()]


def _condition(pod: Body, name: str) -> Body:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry["type"] == name), {})


def _gates_open(pod: Body) -> bool:
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or []]
    return all(_condition(pod, gate).get("status") == "True" for gate in gates)


def _container(pod: Body, state: Body, *, ready: bool) -> Body:
    container, uid = pod["spec"]["containers"][0], pod["metadata"]["uid"]
    before = ((pod.get("status") or {}).get("containerStatuses") or [{}])[0]
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"sha256:{container['image']}",
        "containerID": before.get("containerID") or f"containerd://{uid}-0",
        "ready": ready,
        "started": ready,
        "restartCount": before.get("restartCount", 0),
        "state": state,
    }


def settle(seconds: float = 0.5) -> None:
    """Let events arrive, where a test is to show that nothing happens."""
    time.sleep(seconds)
