"""Observed state of an EncoderModel, parsed from what the API server returned.

These types hold values only, so a test can construct them by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state import ownership

# why a container waits while its pod starts: for volumes, for its image, or for an init container
STARTING = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """How a container terminated."""

    exit_code: int
    reason: str
    message: str
    finished_at: datetime | None

    def report(self) -> Json:
        """Return the JSON object in the container's termination message, or an empty one."""
        return parse_json(self.message)


class Platform(NamedTuple):
    """What a verdict applies to: one accelerator product and one image digest."""

    product: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCondition:
    """The readiness gate condition of a pod."""

    open: bool
    reason: str
    message: str
    # the platform on which the gate was last opened; None if it never was, or if an older operator opened it
    platform: Platform | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A serving, prep or parity pod."""

    name: str
    uid: str
    revision: str
    job: str
    created: datetime
    deleting: bool
    phase: str
    reason: str
    node: str
    ip: str
    ready: bool
    containers_ready: bool
    gate: GateCondition | None
    containers: Mapping[str, str]
    image_id: str
    terminated: Termination | None
    last_terminated: Termination | None
    waiting_reason: str
    waiting_message: str
    unschedulable: str
    # name of the container that waits, if it is not the main one: podTemplate and webhooks may add some
    waiting_container: str = ""
    mount_problem: str = ""
    # why the kubelet cannot create the pod
    creation_problem: str = ""
    # the kubelet's message about the end of the pod
    message: str = ""
    # whether the pod ends for a reason outside its container: a drain, an eviction, a lost node
    disrupted: bool = False
    # problem with the node of a prep pod
    node_problem: str = ""
    # whether a user has added an ephemeral container, which can answer instead of the engine
    has_ephemeral_containers: bool = False
    product: str = ""
    # restarts of all containers
    restarts: int = 0
    # last progress line of a prep pod
    progress: Json | None = None

    @property
    def alive(self) -> bool:
        """Return whether the pod may still run. A terminated pod remains as an object until it is deleted."""
        return self.phase in ("Pending", "Running", "Unknown")

    @property
    def starts_on_node(self) -> bool:
        """Return whether the pod has a node whose kubelet prepares it, and none of its containers has a problem."""
        return self.phase == "Pending" and bool(self.node) and self.waiting_reason in STARTING


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prep or parity Job with its pods."""

    name: str
    uid: str
    revision: str
    annotations: Mapping[str, str]
    created: datetime
    deleting: bool
    complete: bool
    failed: str
    message: str
    finished_at: datetime | None
    pods: tuple[Pod, ...]
    # name of the PersistentVolumeClaim that the Job uses
    pvc: str = ""
    # why the API server rejects its pods
    rejection: str = ""
    # whether another controller, such as that of a queue, holds its pods back
    suspended: bool = False

    @property
    def finished(self) -> bool:
        """Return whether the Job has completed or failed."""
        return self.complete or bool(self.failed)

    @property
    def last_pod(self) -> Pod | None:
        """Return the newest pod."""
        return max(self.pods, key=lambda pod: (pod.created, pod.name), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """An immutable revision: the pod template and the inputs that were pinned for it."""

    hash: str
    inputs_hash: str
    number: int
    pvc_uid: str
    template: Json
    pinned: Json
    created: datetime
    # values of the annotations that requested this revision; removing the annotations requests nothing
    update: str = ""
    retry: str = ""
    # hash of a source that had to be resolved, such as a branch; empty for a commit
    unresolved_source: str = ""
    # since when its pods have failed to start, or that the revision was given up for it
    stalled: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The immutable result of a parity check."""

    name: str
    revision: str
    product: str
    # digest of the image that was verified
    image: str
    thresholds: str
    retry: str
    passed: bool
    data: Json
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentVolumeClaim:
    """The PersistentVolumeClaim that holds the artifacts."""

    name: str
    uid: str
    bound: bool
    # whether pods on several nodes may mount the volume, and whether only a single pod may
    shared: bool
    single_pod: bool = False
    message: str
    live: Json

    @property
    def created(self) -> datetime:
        """Return the creation time."""
        return parse_time(self.live["metadata"].get("creationTimestamp")) or _EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The Deployment of the serving pods."""

    revision: str
    replicas: int
    replica_failure: str
    live: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedState:
    """The input of one planning step."""

    now: datetime
    pvc: PersistentVolumeClaim | None = None
    deployment: Deployment | None = None
    service: Json | None = None
    network_policy: Json | None = None
    http_route: Json | None = None
    disruption_budget: Json | None = None
    # whether the cluster serves HTTPRoutes
    gateway_api: bool = False
    # what the model must wait for before its prep Job may start; empty if it may start now
    prep_wait_reason: str = ""
    # whether an automatic update may start: the window is open, and not too many others are being updated
    automatic_update: bool = False
    prep_jobs: tuple[Job, ...] = ()
    parity_jobs: tuple[Job, ...] = ()
    revisions: tuple[Revision, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    pods: tuple[Pod, ...] = ()
    # children of a deleted EncoderModel of the same name that have not been garbage-collected yet
    stale_children: tuple[str, ...] = ()
    # objects of others that have the name of a child
    name_conflicts: tuple[str, ...] = ()
    live_revisions: Mapping[str, Json] = field(default_factory=dict)
    # sha256 of the user's parity inputs; empty if the spec names none, None if they do not exist
    inputs: str | None = ""
    # whether the ConfigMap of the user's parity inputs exists, with or without the key
    inputs_config_map: bool = False
    # keys of the ConfigMaps of label sets, None for one that does not exist; empty while no prep Job needs them
    config_map_keys: Mapping[str, frozenset[str] | None] = field(default_factory=dict)


def parse_json(text: str) -> Json:
    """Parse a JSON object; return an empty one if the text is not a JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def parse_version(version: str) -> int:
    """Return a resourceVersion as a number, which grows with each change; 0 if it is not one."""
    return int(version) if version.isdigit() else 0


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp of the API server."""
    return datetime.fromisoformat(text) if text else None


def format_time(time: datetime) -> str:
    """Format a timestamp as the API server does."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# name of the main container, by the component of its pod
_MAIN_CONTAINERS = {"serving": "engine", "prep": "prepare", "parity": "parity"}
# a working Job controller creates the first pod of a Job within this time
FIRST_POD_SECONDS = 3.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_pod(live: Json) -> Pod:
    """Parse a pod."""
    meta, status = live["metadata"], live.get("status", {})
    conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
    containers = status.get("containerStatuses", [])
    # podTemplate may add containers, also one that has the name of the container of another component
    main = _MAIN_CONTAINERS.get(ownership.component(live), "")
    first = next((entry for entry in containers if entry["name"] == main), containers[0] if containers else {})
    controller = ownership.controller(live)
    stuck = next((e for e in (first, *status.get("initContainerStatuses", []), *containers) if _is_stuck(e)), first)
    waiting = stuck.get("state", {}).get("waiting", {})
    scheduled = conditions.get("PodScheduled", {})
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        revision=meta.get("labels", {}).get(naming.REVISION, ""),
        job=controller["uid"] if controller.get("kind") == "Job" else "",
        created=parse_time(meta.get("creationTimestamp")) or _EPOCH,
        deleting="deletionTimestamp" in meta,
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        node=live.get("spec", {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        containers_ready=conditions.get("ContainersReady", {}).get("status") == "True",
        gate=_parse_gate(conditions),
        containers={entry["name"]: entry.get("containerID", "") for entry in containers},
        image_id=first.get("imageID", ""),
        terminated=_parse_termination(first.get("state", {})),
        last_terminated=_parse_termination(stuck.get("lastState", {})),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        waiting_container="" if stuck is first else stuck["name"],
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        message=status.get("message", ""),
        has_ephemeral_containers=bool(live.get("spec", {}).get("ephemeralContainers")),
        disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
        restarts=sum(entry.get("restartCount", 0) for entry in containers),
    )


def _is_stuck(container: Json) -> bool:
    """Return whether a container waits because something is wrong, and not because its pod is starting."""
    return container.get("state", {}).get("waiting", {}).get("reason", "") not in ("", *STARTING)


def _parse_gate(conditions: Mapping[str, Json]) -> GateCondition | None:
    gate = conditions.get(naming.GATE)
    if gate is None:
        return None
    recorded = parse_json(conditions.get(naming.PLATFORM, {}).get("message", ""))
    return GateCondition(
        open=gate["status"] == "True",
        reason=gate.get("reason", ""),
        message=gate.get("message", ""),
        platform=Platform(str(recorded["product"]), str(recorded["image"]))
        if {"product", "image"} <= recorded.keys()
        else None,
    )


def _parse_termination(state: Json) -> Termination | None:
    found = state.get("terminated")
    return found and Termination(
        exit_code=found.get("exitCode", -1),
        reason=found.get("reason", ""),
        message=found.get("message", ""),
        finished_at=parse_time(found.get("finishedAt")),
    )


def parse_job(live: Json, pods: Iterable[Pod]) -> Job:
    """Parse a Job and select its pods."""
    meta, status = live["metadata"], live.get("status", {})
    true = {entry["type"]: entry for entry in status.get("conditions", []) if entry["status"] == "True"}
    # FailureTarget and SuccessCriteriaMet are set before the final condition, while pods are still terminating
    failed = true.get("Failed", {})
    finished = failed or true.get("Complete", {})
    volumes = live.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", [])
    return Job(
        name=meta["name"],
        uid=meta["uid"],
        revision=meta.get("labels", {}).get(naming.REVISION, ""),
        annotations=meta.get("annotations", {}),
        created=parse_time(meta.get("creationTimestamp")) or _EPOCH,
        deleting="deletionTimestamp" in meta,
        complete="Complete" in true,
        failed=failed.get("reason", "Failed") if failed else "",
        message=failed.get("message", ""),
        finished_at=parse_time(finished.get("lastTransitionTime")),
        pods=tuple(found for found in pods if found.job == meta["uid"]),
        pvc=next((v["persistentVolumeClaim"]["claimName"] for v in volumes if v["name"] == "artifacts"), ""),
        suspended=bool(live.get("spec", {}).get("suspend")),
    )


def parse_revision(live: Json) -> Revision:
    """Parse a ControllerRevision that records a revision."""
    meta, data = live["metadata"], live["data"]
    labels = meta["labels"]
    # every annotation is stored as a label too, unless it is no valid label value or an older operator wrote the record
    annotations = labels | meta.get("annotations", {})
    return Revision(
        hash=labels[naming.REVISION],
        inputs_hash=labels[naming.INPUTS],
        number=live.get("revision", 0),
        pvc_uid=annotations.get(naming.CLAIM_UID, ""),
        template=data["template"],
        pinned=data["pinned"],
        created=parse_time(meta.get("creationTimestamp")) or _EPOCH,
        update=annotations.get(naming.UPDATE, ""),
        retry=annotations.get(naming.RETRY, ""),
        unresolved_source=annotations.get(naming.ORIGIN, ""),
        stalled=parse_json(annotations.get(naming.STALLED, "")) or _parse_given_up(labels.get(naming.GIVEN_UP, "")),
    )


def _parse_given_up(label: str) -> Json:
    limit, _, retry = label.partition("_")
    message = "its pods did not start in time"
    return {"limit": int(limit), "message": message, "retry": retry} if limit.isdigit() else {}


def parse_verdict(live: Json) -> Verdict:
    """Parse a ControllerRevision that records a verdict."""
    meta, data = live["metadata"], live["data"]
    return Verdict(
        name=meta["name"],
        revision=meta["labels"][naming.REVISION],
        product=data["product"],
        image=data["binding"]["imageID"],
        thresholds=data["thresholds"],
        retry=data.get("retry", ""),
        passed=data["result"] == "Passed",
        data=data,
        created=parse_time(meta.get("creationTimestamp")) or _EPOCH,
    )


def parse_pvc(live: Json) -> PersistentVolumeClaim:
    """Parse a PersistentVolumeClaim."""
    status = live.get("status", {})
    requested = live.get("spec", {}).get("accessModes", [])
    # a bound claim reports all access modes of its volume; of those, only ReadWriteMany lets several nodes mount a
    # volume that is written
    modes = status.get("accessModes") or requested
    phase = status.get("phase", "Pending")
    return PersistentVolumeClaim(
        name=live["metadata"]["name"],
        uid=live["metadata"]["uid"],
        bound=phase == "Bound",
        shared="ReadWriteMany" in modes or modes == ["ReadOnlyMany"],
        single_pod="ReadWriteOncePod" in (*requested, *modes),
        message=f"PersistentVolumeClaim {live['metadata']['name']} is {phase}",
        live=live,
    )


def parse_deployment(live: Json) -> Deployment:
    """Parse the Deployment."""
    spec: Any = live.get("spec", {})
    conditions = {entry["type"]: entry for entry in live.get("status", {}).get("conditions", [])}
    refused = conditions.get("ReplicaFailure", {})
    return Deployment(
        revision=spec.get("template", {}).get("metadata", {}).get("labels", {}).get(naming.REVISION, ""),
        replicas=spec.get("replicas", 0),
        replica_failure=refused.get("message", "") if refused.get("status") == "True" else "",
        live=live,
    )
