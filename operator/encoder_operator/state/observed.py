"""What the API server returned about one EncoderModel, parsed once into values.

No decisions here, and no I/O: ``decide`` works on these, and a test can write them down by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state import ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str
    finished_at: datetime | None

    def report(self) -> Json:
        """Return the JSON object that the container left as its last words, or an empty one."""
        return parse_json(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCondition:
    """The readiness gate as the pod has it."""

    open: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of one container that matters."""

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
    mount_problem: str = ""
    # why the pod itself has ended, in the kubelet's words
    message: str = ""
    # whether something else than its container ends or has ended it: a drain, a node that needs room or is gone
    disrupted: bool = False
    # what is wrong with the node of a prep pod
    node_problem: str = ""
    product: str = ""
    # what a prep pod said last about how far it is
    progress: Json | None = None

    @property
    def alive(self) -> bool:
        """Whether it may still run; one that has ended for good stays as an object until somebody takes it away."""
        return self.phase in ("Pending", "Running", "Unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prep or parity Job, with its pods."""

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
    # the claim whose volume it works on
    pvc: str = ""

    @property
    def finished(self) -> bool:
        """Whether it will do nothing more."""
        return self.complete or bool(self.failed)

    @property
    def last_pod(self) -> Pod | None:
        """Return the newest pod."""
        return max(self.pods, key=lambda pod: (pod.created, pod.name), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """An immutable revision: the finished pod template and what was pinned for it."""

    hash: str
    inputs_hash: str
    number: int
    pvc_uid: str
    template: Json
    pinned: Json
    created: datetime
    # the values of the annotations for whose sake it was made; wiping those from the model asks for nothing
    update: str = ""
    retry: str = ""
    # what its artifact was prepared from, as the spec says it: a branch, not a commit
    unresolved_source: str = ""
    # since when its pods hang, or that it was given up for that
    stalled: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An immutable result of one comparison."""

    name: str
    revision: str
    product: str
    # the image that was compared, by its digest
    image: str
    thresholds: str
    retry: str
    passed: bool
    data: Json
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentVolumeClaim:
    """The volume claim that holds the artifacts."""

    name: str
    uid: str
    bound: bool
    # whether pods on several nodes may have it at once, and whether only one pod may have it at all
    shared: bool
    single_pod: bool = False
    message: str
    live: Json

    @property
    def created(self) -> datetime:
        """Return when it was made."""
        return parse_time(self.live["metadata"].get("creationTimestamp")) or _EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The one Deployment of serving pods."""

    revision: str
    replicas: int
    replica_failure: str
    live: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedState:
    """All that one decision rests on."""

    now: datetime
    pvc: PersistentVolumeClaim | None = None
    deployment: Deployment | None = None
    service: Json | None = None
    network_policy: Json | None = None
    http_route: Json | None = None
    disruption_budget: Json | None = None
    # whether the cluster has HTTPRoutes at all
    gateway_api: bool = False
    # unfinished prep Jobs of other models, of the whole cluster
    used_prep_slots: int = 0
    prep_jobs: tuple[Job, ...] = ()
    parity_jobs: tuple[Job, ...] = ()
    revisions: tuple[Revision, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    pods: tuple[Pod, ...] = ()
    # children of a deleted model of the same name that the garbage collector has not reached yet
    stale_children: tuple[str, ...] = ()
    # objects of other people that have the name of a child
    name_conflicts: tuple[str, ...] = ()
    live_revisions: Mapping[str, Json] = field(default_factory=dict)
    # sha256 of the user's own cases; empty where the spec names none, None where they are not there
    inputs: str | None = ""


def parse_json(text: str) -> Json:
    """Parse a JSON object that somebody has left; empty where it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def parse_time(text: str | None) -> datetime | None:
    """Parse the API server's spelling of a time."""
    return datetime.fromisoformat(text) if text else None


def format_time(time: datetime) -> str:
    """Spell a time as the API server does."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# the container that matters, by the component of its pod
_MAIN_CONTAINERS = {"serving": "engine", "prep": "prepare", "parity": "parity"}
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
    waiting = first.get("state", {}).get("waiting", {})
    scheduled = conditions.get("PodScheduled", {})
    gate = conditions.get(naming.GATE)
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
        gate=gate
        and GateCondition(
            open=gate["status"] == "True", reason=gate.get("reason", ""), message=gate.get("message", "")
        ),
        containers={entry["name"]: entry.get("containerID", "") for entry in containers},
        image_id=first.get("imageID", ""),
        terminated=_parse_termination(first.get("state", {})),
        last_terminated=_parse_termination(first.get("lastState", {})),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        message=status.get("message", ""),
        disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
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
    """Parse a Job and pick its pods."""
    meta, status = live["metadata"], live.get("status", {})
    true = {entry["type"]: entry for entry in status.get("conditions", []) if entry["status"] == "True"}
    # FailureTarget and SuccessCriteriaMet come a moment before the final condition, while pods still end
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
    )


def parse_revision(live: Json) -> Revision:
    """Parse a ControllerRevision that keeps a revision."""
    meta, data = live["metadata"], live["data"]
    labels = meta["labels"]
    # what was said as an annotation is there as a label too, unless it does not fit one or an older operator wrote it
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
    said = "its pods had not started in time"
    return {"limit": int(limit), "message": said, "retry": retry} if limit.isdigit() else {}


def parse_verdict(live: Json) -> Verdict:
    """Parse a ControllerRevision that keeps a verdict."""
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
    asked = live.get("spec", {}).get("accessModes", [])
    # once it is bound, all that its volume can do: of a volume that is written, several nodes may have only what is ReadWriteMany
    modes = status.get("accessModes") or asked
    phase = status.get("phase", "Pending")
    return PersistentVolumeClaim(
        name=live["metadata"]["name"],
        uid=live["metadata"]["uid"],
        bound=phase == "Bound",
        shared="ReadWriteMany" in modes or modes == ["ReadOnlyMany"],
        single_pod="ReadWriteOncePod" in (*asked, *modes),
        message=f"the claim {live['metadata']['name']} is {phase}",
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
