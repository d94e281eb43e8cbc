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
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Job, ObservedState, Pod, Revision
from encoder_operator.status import pod_diagnosis
from encoder_operator.status.reasons import Reason

# a mount that waits for a Secret only says so in Events, some seconds late
_MOUNT_GRACE_SECONDS = 10.0
# who waits is woken when a place is free; this is for the case that nobody does
_QUEUE_POLL_SECONDS = 120.0
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPlan:
    """Where the artifact of the wanted revision stands."""

    reason: Reason
    message: str
    key: str = ""
    artifact: Artifact | None = None
    # what its pod said last about how far it is
    progress: Json | None = None
    failed: bool = False
    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None


def plan(model: EncoderModel, observed: ObservedState, target: Revision | None, settings: Settings) -> ArtifactPlan:
    """Return what to do about the artifact, and what to say of it."""
    if model.inputs_hash is None:
        # without their content nobody can say which artifact is wanted; what is served is served on
        return ArtifactPlan(
            reason=Reason.INPUTS_MISSING, message=_inputs_missing_message(model), requeue_after=_MOUNT_GRACE_SECONDS
        )
    key = revision.artifact_key(model)
    known = _known_artifact(model, observed, target, key)
    wanted = naming.prep_job(model.name, key)
    obsolete: tuple[Action, ...] = _pvc_ownership(model, observed) + tuple(
        Delete("Job", job.name)
        for job in observed.prep_jobs
        if job.name != wanted and not job.deleting and not (known and job.finished)
    )
    if known is not None:
        return ArtifactPlan(reason=Reason.PREPARED, message=describe(known), artifact=known, actions=obsolete)
    job = next((found for found in observed.prep_jobs if found.name == wanted), None)
    if job is not None:
        return _prepend_actions(obsolete, _follow_job(model, job, key, observed))
    if model.spec.suspend:
        return ArtifactPlan(
            reason=Reason.SUSPENDED, message="nothing is prepared while the model is suspended", actions=obsolete
        )
    return _prepend_actions(obsolete, _start_prep(model, observed, key, settings))


def _known_artifact(model: EncoderModel, observed: ObservedState, target: Revision | None, key: str) -> Artifact | None:
    """Return an artifact that some revision has proved to be on the volume of today."""
    if observed.pvc is None:
        return None
    here = [found for found in observed.revisions if found.pvc_uid == observed.pvc.uid]
    if target is not None and target in here:
        return revision.pinned_artifact(target)
    origin = revision.unresolved_source(model)
    same = [
        found
        for found in here
        if found.pinned["claim"] == model.pvc_name
        and (
            found.pinned["artifact"]["key"] == key
            or (origin and found.unresolved_source == origin and not _needs_new_lookup(model, found))
        )
    ]
    newest = max(same, key=lambda found: found.number, default=None)
    return revision.pinned_artifact(newest) if newest else None


def _needs_new_lookup(model: EncoderModel, found: Revision) -> bool:
    return bool(model.retry and found.retry != model.retry)


def _pvc_ownership(model: EncoderModel, observed: ObservedState) -> tuple[Action, ...]:
    """Let a claim of the operator's go with the model or not, as an edited policy says."""
    create = model.spec.storage.create
    if create is None or observed.pvc is None or persistent_volume_claim.needs_expansion(create, observed.pvc):
        return ()
    manifest, live = persistent_volume_claim.build(model, create, observed.pvc), observed.pvc.live
    owned = manifest["metadata"].get("ownerReferences", []) == live["metadata"].get("ownerReferences", [])
    return () if owned else (Apply(manifest, live),)


def volume_expansion(model: EncoderModel, observed: ObservedState) -> tuple[Action, ...]:
    """Let a claim of the operator's grow as an edited size says; the API server refuses that where its StorageClass does not allow it."""
    create = model.spec.storage.create
    if create is None or observed.pvc is None or not persistent_volume_claim.needs_expansion(create, observed.pvc):
        return ()
    return (Apply(persistent_volume_claim.build(model, create, observed.pvc, grown=True), observed.pvc.live),)


def _start_prep(model: EncoderModel, observed: ObservedState, key: str, settings: Settings) -> ArtifactPlan:
    actions: list[Action] = []
    if observed.used_prep_slots >= settings.max_preps:
        return ArtifactPlan(
            reason=Reason.QUEUED,
            message=f"waiting for one of {observed.used_prep_slots} preparations of other models to end",
            key=key,
            requeue_after=_QUEUE_POLL_SECONDS,
        )
    if observed.pvc is None and model.spec.storage.create is not None:
        actions.append(Apply(persistent_volume_claim.build(model, model.spec.storage.create, None), None))
    elif observed.pvc is None:
        return ArtifactPlan(
            reason=Reason.CLAIM_MISSING,
            message=f"there is no PersistentVolumeClaim {model.pvc_name} in namespace {model.namespace}",
            # claims are not watched: one that a person makes is found by looking again
            requeue_after=_MOUNT_GRACE_SECONDS,
        )
    actions.append(
        Apply(prep_job.build(model, key, shared=model.has_shared_volume(observed.pvc), settings=settings), None)
    )
    return ArtifactPlan(reason=Reason.PREPARING, message="the prep Job was started", actions=tuple(actions))


def _follow_job(model: EncoderModel, job: Job, key: str, observed: ObservedState) -> ArtifactPlan:
    if job.deleting:
        return ArtifactPlan(reason=Reason.PREPARING, message="waiting for the former prep Job to go", requeue_after=1.0)
    elsewhere = _not_on_volume(model, job, observed)
    artifact = None if elsewhere else _reported_artifact(job, key)
    if artifact is not None:
        return ArtifactPlan(reason=Reason.PREPARED, message=describe(artifact), artifact=artifact)
    changed = job.annotations.get(naming.INPUTS) != prep_job.inputs_hash(model, key)
    retried = job.failed and model.retry and job.annotations.get(naming.RETRY, "") != model.retry
    if elsewhere or job.complete or changed or retried:
        why = "its report was lost" if job.complete else "the spec changed" if changed else "a retry was asked for"
        why = elsewhere or why
        return ArtifactPlan(
            reason=Reason.PREPARING,
            message=f"the prep Job is made again: {why}",
            actions=(Delete("Job", job.name),),
            requeue_after=0.5,
        )
    return _failed_plan(job) if job.failed else _running_plan(model, job, key, observed)


def _not_on_volume(model: EncoderModel, job: Job, observed: ObservedState) -> str:
    """Say why what the Job has done is not on the volume of today, or nothing if it is."""
    if observed.pvc is None:
        # one that waits for a claim that a person makes goes on by itself
        gone = job.finished or model.spec.storage.create is not None
        return f"the claim {model.pvc_name} is gone" if gone else ""
    if job.pvc not in ("", observed.pvc.name):
        return f"the artifact was on the claim {job.pvc}"
    # both times are of the API server's clock
    if job.created < observed.pvc.created:
        return f"the claim {observed.pvc.name} was made again"
    return ""


def _reported_artifact(job: Job, key: str) -> Artifact | None:
    for pod in job.pods:
        if pod.terminated is None or pod.terminated.exit_code != 0:
            continue
        report = pod.terminated.report()
        if report.get("code") == "Prepared" and report.get("digest") and report.get("reference"):
            return Artifact(
                key=key,
                digest=str(report["digest"]),
                reference=str(report["reference"]),
                revision=str(report.get("revision") or ""),
                bytes=int(report.get("bytes") or 0),
            )
    return None


def _failed_plan(job: Job) -> ArtifactPlan:
    if job.failed == "DeadlineExceeded":
        last = job.last_pod
        why = pod_diagnosis.diagnose(last) if last else None
        said = f": {why.message}" if why else ""
        return ArtifactPlan(
            reason=Reason.DEADLINE_EXCEEDED,
            message=f"the prep Job was not done within spec.prepare.activeDeadlineSeconds{said}",
            failed=True,
        )
    reason, message = _failure(
        job, _newest_pod(pod for pod in job.pods if pod.terminated or pod.reason == pod_diagnosis.EVICTED)
    )
    return ArtifactPlan(reason=reason, message=message, failed=True)


def _running_plan(model: EncoderModel, job: Job, key: str, observed: ObservedState) -> ArtifactPlan:
    last = job.last_pod
    if last is None:
        return ArtifactPlan(reason=Reason.PREPARING, message="the prep Job is starting")
    found = pod_diagnosis.diagnose(last) if last.alive else None
    if found is not None:
        # the kubelet retries mounts and pulls by itself; their end is an event of the pod
        return ArtifactPlan(reason=found.reason, message=found.message, requeue_after=30.0)
    doing, failures = _pod_plan(last, key, observed), [pod for pod in job.pods if _has_failed(pod)]
    if failures:
        reason, message = _failure(job, _newest_pod(failures))
        tries = f"try {len(failures)} of {model.spec.prepare.backoff_limit + 1} failed, it will be tried again: "
        return replace(doing, reason=reason, message=tries + message)
    evicted = _newest_pod(pod for pod in job.pods if pod.reason == pod_diagnosis.EVICTED)
    if evicted is not None:
        # the Job counts no try of a pod that had to make room
        why = pod_diagnosis.eviction(evicted)
        reason = why.reason if evicted is last else doing.reason
        return replace(doing, reason=reason, message=f"{doing.message}; {why.message}")
    return doing


def _pod_plan(pod: Pod, key: str, observed: ObservedState) -> ArtifactPlan:
    """Return what a Job's newest pod is doing, whatever became of those before it."""
    if not pod.alive:
        return ArtifactPlan(reason=Reason.PREPARING, message="the prep Job makes another pod")
    if pod.deleting:
        return ArtifactPlan(
            reason=Reason.PREPARING, message=f"pod {pod.name} is being ended, and the prep Job then makes another"
        )
    if pod.phase != "Pending":
        # its log is no event, and neither is the silence of its node
        return ArtifactPlan(
            reason=Reason.PREPARING,
            message=f"pod {pod.name} is at work",
            key=key,
            progress=pod.progress,
            requeue_after=_PROGRESS_SECONDS,
        )
    waited = (observed.now - pod.created).total_seconds()
    return ArtifactPlan(
        reason=Reason.PREPARING,
        message=f"pod {pod.name} is starting",
        requeue_after=max(1.0, _MOUNT_GRACE_SECONDS - waited),
    )


def _has_failed(pod: Pod) -> bool:
    """Return whether the Job counts a pod as a failed try."""
    return not pod.disrupted and (pod.phase == "Failed" or bool(pod.terminated and pod.terminated.exit_code))


def _newest_pod(pods: Iterable[Pod]) -> Pod | None:
    return max(pods, key=lambda pod: (pod.created, pod.name), default=None)


def _failure(job: Job, pod: Pod | None) -> tuple[Reason, str]:
    """Return why a Job's pod has failed; of none, what the Job itself says."""
    if pod is not None and pod.reason == pod_diagnosis.EVICTED:
        return pod_diagnosis.eviction(pod)
    ended = pod.terminated if pod is not None else None
    if ended is None:
        last = job.last_pod
        found = pod_diagnosis.diagnose(last) if last else None
        return found or (Reason.PREPARATION_FAILED, job.message or "the prep Job failed and left no report")
    if ended.reason == "OOMKilled":
        return Reason.OUT_OF_MEMORY, "the prep Job needed more memory than spec.prepare.resources allows"
    report = ended.report()
    code = str(report.get("code", ""))
    reason = _REASON_BY_CODE.get(code, Reason.PREPARATION_FAILED)
    said = str(report.get("message") or ended.message.strip()[-300:] or job.message)
    prefix = f"{code}: " if code and reason is Reason.PREPARATION_FAILED else ""
    return reason, f"{prefix}{said}" if said else f"the prep Job ended with exit code {ended.exit_code}"


def _prepend_actions(first: tuple[Action, ...], found: ArtifactPlan) -> ArtifactPlan:
    return replace(found, actions=first + found.actions)


def _inputs_missing_message(model: EncoderModel) -> str:
    wanted = model.spec.parity.inputs
    named = f"{wanted.config_map_ref.name} with the key {wanted.config_map_ref.key}" if wanted else ""
    return f"spec.parity.inputs: there is no ConfigMap {named} in namespace {model.namespace}"


def describe(artifact: Artifact) -> str:
    """Return an artifact's digest and size as people read them."""
    return f"{artifact.digest} ({artifact.bytes / 1e6:.1f} MB)"


# what `encoder-plugins prepare` reports as its code
_REASON_BY_CODE = {
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
