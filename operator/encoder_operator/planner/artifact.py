"""Decides about the artifact: is it there, is a Job on it, or has that failed for good?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from encoder_operator import naming
from encoder_operator.manager.settings import Settings
from encoder_operator.planner.actions import Action, Apply, Delete
from encoder_operator.resources import persistent_volume_claim, prep_job
from encoder_operator.revisions import revision
from encoder_operator.revisions.hashing import Json
from encoder_operator.revisions.revision import Artifact
from encoder_operator.state.desired import Model
from encoder_operator.state.observed import Facts, Job, Pod, Revision
from encoder_operator.status import pod_diagnosis
from encoder_operator.status.reasons import Reason

# a mount that waits for a Secret only says so in Events, some seconds late
_MOUNT_PATIENCE = 10.0
# who waits is woken when a place is free; this is for the case that nobody does
_QUEUE_SECONDS = 120.0
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Where the artifact of the wanted revision stands."""

    reason: Reason
    message: str
    key: str = ""
    artifact: Artifact | None = None
    # what its pod said last about how far it is
    progress: Json | None = None
    failed: bool = False
    actions: tuple[Action, ...] = ()
    wake_after: float | None = None


def decide(model: Model, facts: Facts, target: Revision | None, settings: Settings) -> Preparation:
    """Return what to do about the artifact, and what to say of it."""
    if model.inputs is None:
        # without their content nobody can say which artifact is wanted; what is served is served on
        return Preparation(reason=Reason.INPUTS_MISSING, message=_inputs_missing(model), wake_after=_MOUNT_PATIENCE)
    key = revision.artifact_key(model)
    known = _known(model, facts, target, key)
    wanted = naming.prep_job(model.name, key)
    obsolete: tuple[Action, ...] = _claim(model, facts) + tuple(
        Delete("Job", job.name)
        for job in facts.prep_jobs
        if job.name != wanted and not job.deleting and not (known and job.finished)
    )
    if known is not None:
        return Preparation(reason=Reason.PREPARED, message=about(known), artifact=known, actions=obsolete)
    job = next((found for found in facts.prep_jobs if found.name == wanted), None)
    if job is not None:
        return _with(obsolete, _job(model, job, key, facts))
    if model.spec.suspend:
        return Preparation(
            reason=Reason.SUSPENDED, message="nothing is prepared while the model is suspended", actions=obsolete
        )
    return _with(obsolete, _start(model, facts, key, settings))


def _known(model: Model, facts: Facts, target: Revision | None, key: str) -> Artifact | None:
    """Return an artifact that some revision has proved to be on the volume of today."""
    if facts.claim is None:
        return None
    here = [found for found in facts.revisions if found.claim_uid == facts.claim.uid]
    if target is not None and target in here:
        return revision.artifact_of(target)
    origin = revision.origin(model)
    same = [
        found
        for found in here
        if found.pinned["claim"] == model.claim_name
        and (found.pinned["artifact"]["key"] == key or (origin and found.origin == origin and not _again(model, found)))
    ]
    newest = max(same, key=lambda found: found.number, default=None)
    return revision.artifact_of(newest) if newest else None


def _again(model: Model, found: Revision) -> bool:
    return bool(model.retry and found.retry != model.retry)


def _claim(model: Model, facts: Facts) -> tuple[Action, ...]:
    """Let a claim of the operator's go with the model or not, as an edited policy says."""
    create = model.spec.storage.create
    if create is None or facts.claim is None or persistent_volume_claim.grows(create, facts.claim):
        return ()
    manifest, live = persistent_volume_claim.render(model, create, facts.claim), facts.claim.live
    owned = manifest["metadata"].get("ownerReferences", []) == live["metadata"].get("ownerReferences", [])
    return () if owned else (Apply(manifest, live),)


def growth(model: Model, facts: Facts) -> tuple[Action, ...]:
    """Let a claim of the operator's grow as an edited size says; the API server refuses that where its StorageClass does not allow it."""
    create = model.spec.storage.create
    if create is None or facts.claim is None or not persistent_volume_claim.grows(create, facts.claim):
        return ()
    return (Apply(persistent_volume_claim.render(model, create, facts.claim, grown=True), facts.claim.live),)


def _start(model: Model, facts: Facts, key: str, settings: Settings) -> Preparation:
    actions: list[Action] = []
    if facts.preps_elsewhere >= settings.max_preps:
        return Preparation(
            reason=Reason.QUEUED,
            message=f"waiting for one of {facts.preps_elsewhere} preparations of other models to end",
            key=key,
            wake_after=_QUEUE_SECONDS,
        )
    if facts.claim is None and model.spec.storage.create is not None:
        actions.append(Apply(persistent_volume_claim.render(model, model.spec.storage.create, None), None))
    elif facts.claim is None:
        return Preparation(
            reason=Reason.CLAIM_MISSING,
            message=f"there is no PersistentVolumeClaim {model.claim_name} in namespace {model.namespace}",
            # claims are not watched: one that a person makes is found by looking again
            wake_after=_MOUNT_PATIENCE,
        )
    actions.append(Apply(prep_job.render(model, key, shared=model.shares(facts.claim), settings=settings), None))
    return Preparation(reason=Reason.PREPARING, message="the prep Job was started", actions=tuple(actions))


def _job(model: Model, job: Job, key: str, facts: Facts) -> Preparation:
    if job.deleting:
        return Preparation(reason=Reason.PREPARING, message="waiting for the former prep Job to go", wake_after=1.0)
    elsewhere = _elsewhere(model, job, facts)
    artifact = None if elsewhere else _reported(job, key)
    if artifact is not None:
        return Preparation(reason=Reason.PREPARED, message=about(artifact), artifact=artifact)
    changed = job.annotations.get(naming.INPUTS) != prep_job.inputs(model, key)
    retried = job.failed and model.retry and job.annotations.get(naming.RETRY, "") != model.retry
    if elsewhere or job.complete or changed or retried:
        why = "its report was lost" if job.complete else "the spec changed" if changed else "a retry was asked for"
        why = elsewhere or why
        return Preparation(
            reason=Reason.PREPARING,
            message=f"the prep Job is made again: {why}",
            actions=(Delete("Job", job.name),),
            wake_after=0.5,
        )
    return _failed(job) if job.failed else _running(model, job, key, facts)


def _elsewhere(model: Model, job: Job, facts: Facts) -> str:
    """Say why what the Job has done is not on the volume of today, or nothing if it is."""
    if facts.claim is None:
        # one that waits for a claim that a person makes goes on by itself
        gone = job.finished or model.spec.storage.create is not None
        return f"the claim {model.claim_name} is gone" if gone else ""
    if job.claim not in ("", facts.claim.name):
        return f"the artifact was on the claim {job.claim}"
    # both times are of the API server's clock
    if job.created < facts.claim.created:
        return f"the claim {facts.claim.name} was made again"
    return ""


def _reported(job: Job, key: str) -> Artifact | None:
    for pod in job.pods:
        if pod.ended is None or pod.ended.exit_code != 0:
            continue
        report = pod.ended.report()
        if report.get("code") == "Prepared" and report.get("digest") and report.get("reference"):
            return Artifact(
                key=key,
                digest=str(report["digest"]),
                reference=str(report["reference"]),
                revision=str(report.get("revision") or ""),
                bytes=int(report.get("bytes") or 0),
            )
    return None


def _failed(job: Job) -> Preparation:
    if job.failed == "DeadlineExceeded":
        last = job.last_pod
        why = pod_diagnosis.of(last) if last else None
        said = f": {why.message}" if why else ""
        return Preparation(
            reason=Reason.DEADLINE_EXCEEDED,
            message=f"the prep Job was not done within spec.prepare.activeDeadlineSeconds{said}",
            failed=True,
        )
    reason, message = _explained(
        job, _newest(pod for pod in job.pods if pod.ended or pod.reason == pod_diagnosis.EVICTED)
    )
    return Preparation(reason=reason, message=message, failed=True)


def _running(model: Model, job: Job, key: str, facts: Facts) -> Preparation:
    last = job.last_pod
    if last is None:
        return Preparation(reason=Reason.PREPARING, message="the prep Job is starting")
    found = pod_diagnosis.of(last) if last.alive else None
    if found is not None:
        # the kubelet retries mounts and pulls by itself; their end is an event of the pod
        return Preparation(reason=found.reason, message=found.message, wake_after=30.0)
    doing, failures = _doing(last, key, facts), [pod for pod in job.pods if _has_failed(pod)]
    if failures:
        reason, message = _explained(job, _newest(failures))
        tries = f"try {len(failures)} of {model.spec.prepare.backoff_limit + 1} failed, it will be tried again: "
        return replace(doing, reason=reason, message=tries + message)
    evicted = _newest(pod for pod in job.pods if pod.reason == pod_diagnosis.EVICTED)
    if evicted is not None:
        # the Job counts no try of a pod that had to make room
        why = pod_diagnosis.evicted(evicted)
        reason = why.reason if evicted is last else doing.reason
        return replace(doing, reason=reason, message=f"{doing.message}; {why.message}")
    return doing


def _doing(pod: Pod, key: str, facts: Facts) -> Preparation:
    """Return what a Job's newest pod is doing, whatever became of those before it."""
    if not pod.alive:
        return Preparation(reason=Reason.PREPARING, message="the prep Job makes another pod")
    if pod.deleting:
        return Preparation(
            reason=Reason.PREPARING, message=f"pod {pod.name} is being ended, and the prep Job then makes another"
        )
    if pod.phase != "Pending":
        # its log is no event, and neither is the silence of its node
        return Preparation(
            reason=Reason.PREPARING,
            message=f"pod {pod.name} is at work",
            key=key,
            progress=pod.progress,
            wake_after=_PROGRESS_SECONDS,
        )
    waited = (facts.now - pod.created).total_seconds()
    return Preparation(
        reason=Reason.PREPARING,
        message=f"pod {pod.name} is starting",
        wake_after=max(1.0, _MOUNT_PATIENCE - waited),
    )


def _has_failed(pod: Pod) -> bool:
    """Return whether the Job counts a pod as a failed try."""
    return not pod.disrupted and (pod.phase == "Failed" or bool(pod.ended and pod.ended.exit_code))


def _newest(pods: Iterable[Pod]) -> Pod | None:
    return max(pods, key=lambda pod: (pod.created, pod.name), default=None)


def _explained(job: Job, pod: Pod | None) -> tuple[Reason, str]:
    """Return why a Job's pod has failed; of none, what the Job itself says."""
    if pod is not None and pod.reason == pod_diagnosis.EVICTED:
        return pod_diagnosis.evicted(pod)
    ended = pod.ended if pod is not None else None
    if ended is None:
        last = job.last_pod
        found = pod_diagnosis.of(last) if last else None
        return found or (Reason.PREPARATION_FAILED, job.message or "the prep Job failed and left no report")
    if ended.reason == "OOMKilled":
        return Reason.OUT_OF_MEMORY, "the prep Job needed more memory than spec.prepare.resources allows"
    report = ended.report()
    code = str(report.get("code", ""))
    reason = _BY_CODE.get(code, Reason.PREPARATION_FAILED)
    said = str(report.get("message") or ended.message.strip()[-300:] or job.message)
    prefix = f"{code}: " if code and reason is Reason.PREPARATION_FAILED else ""
    return reason, f"{prefix}{said}" if said else f"the prep Job ended with exit code {ended.exit_code}"


def _with(first: tuple[Action, ...], found: Preparation) -> Preparation:
    return replace(found, actions=first + found.actions)


def _inputs_missing(model: Model) -> str:
    wanted = model.spec.parity.inputs
    named = f"{wanted.config_map_ref.name} with the key {wanted.config_map_ref.key}" if wanted else ""
    return f"spec.parity.inputs: there is no ConfigMap {named} in namespace {model.namespace}"


def about(artifact: Artifact) -> str:
    """Return an artifact's digest and size as people read them."""
    return f"{artifact.digest} ({artifact.bytes / 1e6:.1f} MB)"


# what `encoder-plugins prepare` reports as its code
_BY_CODE = {
    reason.value: reason
    for reason in (
        Reason.AUTH_FAILED,
        Reason.REPOSITORY_NOT_FOUND,
        Reason.REVISION_NOT_FOUND,
        Reason.FILE_NOT_FOUND,
        Reason.INSUFFICIENT_SPACE,
        Reason.CHECKSUM_MISMATCH,
        Reason.UNSUPPORTED,
        Reason.UNSUPPORTED_FILESYSTEM,
        Reason.PICKLE_REFUSED,
        Reason.REMOTE_CODE_REFUSED,
        Reason.STALLED,
        Reason.RATE_LIMITED,
        Reason.DOWNLOAD_FAILED,
    )
}
