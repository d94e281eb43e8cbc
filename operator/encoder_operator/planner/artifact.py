"""Plan the preparation of the artifact: use an existing one, follow the prep Job, or start one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from encoder_operator import naming
from encoder_operator.manager.settings import Settings
from encoder_operator.planner.actions import Action, Apply, Delete, DryRun
from encoder_operator.resources import deployment, persistent_volume_claim, prep_job
from encoder_operator.revisions import revision
from encoder_operator.revisions.hashing import Json
from encoder_operator.revisions.revision import Artifact
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import FIRST_POD_SECONDS, Job, ObservedState, Pod, Revision
from encoder_operator.status import pod_diagnosis
from encoder_operator.status.reasons import PREP_ERRORS, Reason

# the kubelet reports a mount that waits for a Secret only in Events, several seconds late
_MOUNT_GRACE_SECONDS = 10.0
# a waiting model is enqueued when a slot becomes free; this is a fallback
_QUEUE_POLL_SECONDS = 120.0
_PROGRESS_SECONDS = 10.0
_UNKNOWN_DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPlan:
    """The state of the target revision's artifact, and what to do about it."""

    reason: Reason
    message: str
    key: str = ""
    artifact: Artifact | None = None
    # last progress line of the prep pod
    progress: Json | None = None
    failed: bool = False
    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None


def plan(model: EncoderModel, observed: ObservedState, target: Revision | None, settings: Settings) -> ArtifactPlan:
    """Return the state of the artifact and the actions that bring it about."""
    if model.inputs_hash is None:
        # without the content of the inputs the artifact key is unknown; the serving revision is left alone
        return ArtifactPlan(
            reason=Reason.INPUTS_MISSING,
            message=_inputs_missing_message(model, observed),
            requeue_after=_MOUNT_GRACE_SECONDS,
        )
    key = revision.artifact_key(model)
    known = _known_artifact(model, observed, target, key)
    wanted = naming.prep_job(model.name, key)
    cleanup: tuple[Action, ...] = pvc_ownership(model, observed) + tuple(
        Delete("Job", job.name)
        for job in observed.prep_jobs
        if job.name != wanted and not job.deleting and not (known and job.finished)
    )
    if known is not None:
        return ArtifactPlan(reason=Reason.PREPARED, message=describe(known), artifact=known, actions=cleanup)
    job = next((found for found in observed.prep_jobs if found.name == wanted), None)
    if job is not None:
        return _prepend_actions(cleanup, _follow_job(model, job, key, observed))
    if model.spec.suspend:
        return ArtifactPlan(
            reason=Reason.SUSPENDED, message="Preparation is suspended because spec.suspend is true", actions=cleanup
        )
    return _prepend_actions(cleanup, _start_prep(model, observed, key, settings))


def _known_artifact(model: EncoderModel, observed: ObservedState, target: Revision | None, key: str) -> Artifact | None:
    """Return an artifact that an existing revision has recorded on the current volume."""
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


def pvc_ownership(model: EncoderModel, observed: ObservedState) -> tuple[Action, ...]:
    """Add or remove the owner reference of the operator's PVC after an edit of spec.storage.policy."""
    create = model.spec.storage.create
    if create is None or observed.pvc is None or persistent_volume_claim.needs_expansion(create, observed.pvc):
        return ()
    manifest, live = persistent_volume_claim.build(model, create, observed.pvc), observed.pvc.live
    owned = manifest["metadata"].get("ownerReferences", []) == live["metadata"].get("ownerReferences", [])
    return () if owned else (Apply(manifest, live),)


def volume_expansion(model: EncoderModel, observed: ObservedState) -> tuple[Action, ...]:
    """Expand the operator's PVC after an edit of its size. The API server rejects this if the StorageClass does not allow it."""
    create = model.spec.storage.create
    if create is None or observed.pvc is None or not persistent_volume_claim.needs_expansion(create, observed.pvc):
        return ()
    return (Apply(persistent_volume_claim.build(model, create, observed.pvc, grown=True), observed.pvc.live),)


def _start_prep(model: EncoderModel, observed: ObservedState, key: str, settings: Settings) -> ArtifactPlan:
    actions: list[Action] = []
    if missing := _missing_label_sets(model, observed):
        return missing
    if observed.prep_wait_reason:
        return ArtifactPlan(
            reason=Reason.QUEUED, message=observed.prep_wait_reason, key=key, requeue_after=_QUEUE_POLL_SECONDS
        )
    if model.spec.serving.pod_template is not None and (
        observed.pvc is not None or model.spec.storage.create is not None
    ):
        actions.append(DryRun(_deployment_before_artifact(model, observed, key, settings)))
    if observed.pvc is None and model.spec.storage.create is not None:
        actions.append(
            Apply(
                persistent_volume_claim.build(
                    model, model.spec.storage.create, None, storage_class=settings.defaults.storage_class_name
                ),
                None,
            )
        )
    elif observed.pvc is None:
        return ArtifactPlan(
            reason=Reason.CLAIM_MISSING,
            message=f"PersistentVolumeClaim {model.pvc_name} does not exist in namespace {model.namespace}",
            # PVCs are not watched, so one that the user creates is found by polling
            requeue_after=_MOUNT_GRACE_SECONDS,
        )
    actions.append(
        Apply(prep_job.build(model, key, shared=model.has_shared_volume(observed.pvc), settings=settings), None)
    )
    return ArtifactPlan(reason=Reason.PREPARING, message="The prep Job was created", actions=tuple(actions))


def _deployment_before_artifact(model: EncoderModel, observed: ObservedState, key: str, settings: Settings) -> Json:
    """Return the Deployment with an artifact that does not exist yet: what is wrong with the rest of it can be found before the preparation."""
    unknown = Artifact(key=key, digest=_UNKNOWN_DIGEST, reference=_UNKNOWN_DIGEST, revision="", bytes=0)
    shared = model.has_shared_volume(observed.pvc)
    return deployment.build(model, revision.build(model, unknown, shared=shared, settings=settings), 0)


def _follow_job(model: EncoderModel, job: Job, key: str, observed: ObservedState) -> ArtifactPlan:
    if job.deleting:
        return ArtifactPlan(
            reason=Reason.PREPARING, message="Waiting for the deletion of the previous prep Job", requeue_after=1.0
        )
    elsewhere = _not_on_volume(model, job, observed)
    artifact = None if elsewhere else _reported_artifact(model, job, key)
    if artifact is not None:
        return ArtifactPlan(reason=Reason.PREPARED, message=describe(artifact), artifact=artifact)
    changed = job.annotations.get(naming.INPUTS) != prep_job.inputs_hash(model, key)
    retried = job.failed and model.retry and job.annotations.get(naming.RETRY, "") != model.retry
    if elsewhere or job.complete or changed or retried:
        cause = "its report was lost" if job.complete else "the spec changed" if changed else "a retry was requested"
        cause = elsewhere or cause
        return ArtifactPlan(
            reason=Reason.PREPARING,
            message=f"The prep Job is created again because {cause}",
            actions=(Delete("Job", job.name),),
            requeue_after=0.5,
        )
    return _failed_plan(job) if job.failed else _running_plan(model, job, key, observed)


def _not_on_volume(model: EncoderModel, job: Job, observed: ObservedState) -> str:
    """Return why the Job's result is not on the current volume, or an empty string if it is."""
    if observed.pvc is None:
        # a Job that waits for a user's PVC continues when the PVC is created
        gone = job.finished or model.spec.storage.create is not None
        return f"PersistentVolumeClaim {model.pvc_name} no longer exists" if gone else ""
    if job.pvc not in ("", observed.pvc.name):
        return f"the artifact was on PersistentVolumeClaim {job.pvc}"
    # both times come from the API server's clock
    if job.created < observed.pvc.created:
        return f"PersistentVolumeClaim {observed.pvc.name} was recreated"
    return ""


def _reported_artifact(model: EncoderModel, job: Job, key: str) -> Artifact | None:
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
                # the key is a hash of these, too
                parameters=dict(model.spec.prepare.parameters),
                label_sets=model.label_sets,
            )
    return None


def _failed_plan(job: Job) -> ArtifactPlan:
    if job.failed == "DeadlineExceeded":
        last = job.last_pod
        cause = pod_diagnosis.diagnose(last) if last else None
        detail = f": {cause.message}" if cause else ""
        return ArtifactPlan(
            reason=Reason.DEADLINE_EXCEEDED,
            message=f"The prep Job exceeded spec.prepare.activeDeadlineSeconds{detail}",
            failed=True,
        )
    reason, message = _failure(
        job, _newest_pod(pod for pod in job.pods if pod.terminated or pod.reason == pod_diagnosis.EVICTED)
    )
    return ArtifactPlan(reason=reason, message=message, failed=True)


def _running_plan(model: EncoderModel, job: Job, key: str, observed: ObservedState) -> ArtifactPlan:
    last = job.last_pod
    if job.suspended:
        queue = f"queue {model.queue} to admit it" if model.queue else "another controller to resume it"
        # the Job's next event reports that it was resumed
        return ArtifactPlan(reason=Reason.QUEUED, message=f"Job {job.name} is suspended and waits for {queue}")
    if last is None and job.rejection:
        # the Job controller retries, and the first pod's event reports that it succeeded
        message = f"Job {job.name} cannot create its pod: {job.rejection}"
        return ArtifactPlan(reason=Reason.PODS_REFUSED, message=message, requeue_after=30.0)
    if last is None:
        # Events are not watched
        return ArtifactPlan(
            reason=Reason.PREPARING, message="The prep Job is starting", requeue_after=FIRST_POD_SECONDS
        )
    # a sidecar that a webhook has added may keep a pod running whose preparation has ended
    found = pod_diagnosis.diagnose(last) if last.alive and last.terminated is None else None
    mounts = last.phase == "Pending" and (found is None or found.reason is Reason.VOLUME_NOT_MOUNTED)
    if mounts and (missing := _missing_label_sets(model, observed)):
        # it was deleted after the Job was created; the kubelet mounts it when it is created again
        return missing
    if found is not None:
        # the kubelet retries mounts and pulls, and the pod's next event reports the result
        return ArtifactPlan(reason=found.reason, message=found.message, requeue_after=30.0)
    plan_for_pod, failures = _pod_plan(last, key, observed), [pod for pod in job.pods if _has_failed(pod)]
    if failures:
        reason, message = _failure(job, _newest_pod(failures))
        attempts = f"Attempt {len(failures)} of {model.spec.prepare.backoff_limit + 1} failed and will be retried: "
        return replace(plan_for_pod, reason=reason, message=attempts + message)
    evicted = _newest_pod(pod for pod in job.pods if pod.reason == pod_diagnosis.EVICTED)
    if evicted is not None:
        # the Job does not count evicted pods as failures
        cause = pod_diagnosis.eviction(evicted)
        reason = cause.reason if evicted is last else plan_for_pod.reason
        return replace(plan_for_pod, reason=reason, message=f"{plan_for_pod.message}. {cause.message}")
    return plan_for_pod


def _pod_plan(pod: Pod, key: str, observed: ObservedState) -> ArtifactPlan:
    """Return the plan for a Job's newest pod, regardless of earlier pods."""
    if not pod.alive:
        return ArtifactPlan(reason=Reason.PREPARING, message="The prep Job is creating a replacement pod")
    if pod.deleting:
        return ArtifactPlan(
            reason=Reason.PREPARING,
            message=f"Pod {pod.name} is terminating; the prep Job will create a replacement pod",
        )
    if pod.phase != "Pending":
        # neither a new log line nor an unresponsive node is an event
        return ArtifactPlan(
            reason=Reason.PREPARING,
            message=f"Pod {pod.name} is running",
            key=key,
            progress=pod.progress,
            requeue_after=_PROGRESS_SECONDS,
        )
    waited = (observed.now - pod.created).total_seconds()
    return ArtifactPlan(
        reason=Reason.PREPARING,
        message=f"Pod {pod.name} is starting",
        requeue_after=max(1.0, _MOUNT_GRACE_SECONDS - waited),
    )


def _has_failed(pod: Pod) -> bool:
    """Return whether the Job counts a pod as a failed attempt."""
    return not pod.disrupted and (pod.phase == "Failed" or bool(pod.terminated and pod.terminated.exit_code))


def _newest_pod(pods: Iterable[Pod]) -> Pod | None:
    return max(pods, key=lambda pod: (pod.created, pod.name), default=None)


def _failure(job: Job, pod: Pod | None) -> tuple[Reason, str]:
    """Return why a Job's pod failed, or without a pod, the Job's own message."""
    if pod is not None and pod.reason == pod_diagnosis.EVICTED:
        return pod_diagnosis.eviction(pod)
    ended = pod.terminated if pod is not None else None
    if ended is None:
        last = job.last_pod
        found = pod_diagnosis.diagnose(last) if last else None
        return found or (Reason.PREPARATION_FAILED, job.message or "The prep Job failed without a report")
    if ended.reason == "OOMKilled":
        return Reason.OUT_OF_MEMORY, "The prep Job exceeded the memory limit in spec.prepare.resources"
    report = ended.report()
    code = str(report.get("code", ""))
    reason = _REASON_BY_CODE.get(code, Reason.PREPARATION_FAILED)
    detail = str(report.get("message") or ended.message.strip()[-300:] or job.message)
    prefix = f"{code}: " if code and reason is Reason.PREPARATION_FAILED else ""
    return reason, f"{prefix}{detail}" if detail else f"The prep Job exited with code {ended.exit_code}"


def _prepend_actions(first: tuple[Action, ...], found: ArtifactPlan) -> ArtifactPlan:
    return replace(found, actions=first + found.actions)


def _inputs_missing_message(model: EncoderModel, observed: ObservedState) -> str:
    inputs = model.spec.parity.inputs
    wanted = inputs.config_map_ref if inputs else None
    key, named = (wanted.key, wanted.name) if wanted else ("", "")
    if observed.inputs_config_map:
        return f"spec.parity.inputs: ConfigMap {named} in namespace {model.namespace} does not have the key {key}"
    return f"spec.parity.inputs: ConfigMap {named}, which needs the key {key}, does not exist in namespace {model.namespace}"


def _missing_label_sets(model: EncoderModel, observed: ObservedState) -> ArtifactPlan | None:
    """Return the plan while a ConfigMap or key of a label set does not exist, or None."""
    missing = []
    for entry in model.spec.label_sets:
        wanted = entry.config_map_ref
        if wanted is None or wanted.name not in observed.config_map_keys:
            continue
        keys, named = observed.config_map_keys[wanted.name], f"ConfigMap {wanted.name}"
        if keys is None:
            missing.append(
                f"label set {entry.name} needs key {wanted.key} of {named}, which does not exist in namespace {model.namespace}"
            )
        elif wanted.key not in keys:
            missing.append(
                f"label set {entry.name} needs key {wanted.key}, which {named} in namespace {model.namespace} does not have"
            )
    if not missing:
        return None
    return ArtifactPlan(
        reason=Reason.LABEL_SET_MISSING,
        message=f"spec.labelSets: {'; '.join(missing)}",
        # ConfigMaps are not watched
        requeue_after=_MOUNT_GRACE_SECONDS,
    )


def describe(artifact: Artifact) -> str:
    """Return an artifact's digest and size for a message."""
    return f"The artifact has {artifact.bytes / 1e6:.1f} MB and the digest {artifact.digest}"


_REASON_BY_CODE = {reason.value: reason for reason in PREP_ERRORS}
