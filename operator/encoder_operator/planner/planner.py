"""Plan what to do about one EncoderModel: observed state in, plan out. Pure functions; the time is part of the observed state.

Each step works on the state that the previous steps will have produced, so one reconcile goes as far as the cluster's
state allows. The operator may stop between any two writes: the next reconcile continues from what exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from encoder_operator.client import apply_diff
from encoder_operator.manager.settings import Settings
from encoder_operator.planner import (
    artifact,
    automatic_update,
    gates,
    networking,
    progress_deadline,
    rollout,
    verification,
)
from encoder_operator.planner.actions import Action, Apply, Delete, Plan, earliest
from encoder_operator.planner.artifact import ArtifactPlan
from encoder_operator.planner.progress_deadline import ProgressDeadline
from encoder_operator.planner.verification import VerificationPlan
from encoder_operator.resources import controller_revisions
from encoder_operator.revisions import revision
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import ObservedState, Revision
from encoder_operator.status import status
from encoder_operator.status.events import events_for
from encoder_operator.status.reasons import Reason
from encoder_operator.validation import checks

# neither ConfigMaps nor the list of API resources are watched, so changes are found by polling
_CONFIG_MAP_POLL_SECONDS = 60.0
_GATEWAY_API_POLL_SECONDS = 60.0
# nor are Events, which alone say that a volume cannot be mounted
_STARTING_POLL_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetPlan:
    """The plan for the target revision, and the observed state as it will then be."""

    target: Revision | None
    observed: ObservedState
    actions: tuple[Action, ...]
    verification: VerificationPlan
    deadline: ProgressDeadline | None = None


def plan(model: EncoderModel, observed: ObservedState, settings: Settings) -> Plan:
    """Return the writes to make, the status to show, and when to reconcile again.

    Raises:
        NotAccepted: The existing volume cannot serve what the spec requests.
    """
    if observed.stale_children:
        found = status.waiting_for_deletion_status(model, observed)
        return Plan(actions=(), events=(), status=found, requeue_after=1.0)
    if observed.pvc is not None:
        checks.check_volume(model.spec, model.name, model.namespace, observed.pvc)
    known = _revision_for_spec(model, observed)
    if model.spec.paused:
        return _plan_paused(model, observed, known)
    model = automatic_update.with_update(model, observed, known, settings)
    known = _revision_for_spec(model, observed)
    # gates of verified pods do not depend on writes that may be rejected
    early_gates = gates.gates_to_set(model, observed)
    artifact_plan = artifact.plan(model, observed, known, settings)
    target_plan = _plan_target(model, observed, known, artifact_plan, settings)
    target, observed, shared = (
        target_plan.target,
        target_plan.observed,
        observed.pvc is not None and observed.pvc.shared,
    )
    rollout_plan = rollout.plan(model, observed, target, target_plan.deadline.overdue if target_plan.deadline else "")
    inputs = status.StatusInputs(
        model=model,
        observed=observed,
        artifact_plan=artifact_plan,
        target=target,
        verification=target_plan.verification,
        rollout=rollout_plan,
        available_update=revision.available_update(target, model, shared=shared, settings=settings) if target else None,
    )
    new_status = status.build_status(inputs)
    return Plan(
        actions=(
            *early_gates,
            *artifact_plan.actions,
            *target_plan.actions,
            # after a passed parity check the Deployment's rollout waits for these gates only
            *(gate for gate in gates.gates_to_set(model, observed) if gate not in early_gates),
            *rollout_plan.actions,
            *rollout.prune(model, observed, rollout_plan, target),
            # last, because the API server rejects it if the StorageClass does not allow volume expansion
            *artifact.volume_expansion(model, observed),
        ),
        events=events_for(model.status, new_status),
        status=new_status,
        requeue_after=earliest(
            [
                artifact_plan.requeue_after,
                target_plan.verification.requeue_after,
                target_plan.deadline.requeue_after if target_plan.deadline else None,
                _GATEWAY_API_POLL_SECONDS if networking.gateway_api_missing(model, observed) else None,
                _CONFIG_MAP_POLL_SECONDS if model.inputs_hash else None,
                _STARTING_POLL_SECONDS if _any_pod_starts(observed) else None,
            ]
        ),
    )


def _any_pod_starts(observed: ObservedState) -> bool:
    """Return whether a serving or parity pod is starting. What keeps it from that is in Events, which are not watched."""
    jobs = (pod for job in observed.parity_jobs for pod in job.pods)
    return any(pod.starts_on_node for pod in (*observed.pods, *jobs))


def _plan_target(
    model: EncoderModel,
    observed: ObservedState,
    known: Revision | None,
    artifact_plan: ArtifactPlan,
    settings: Settings,
) -> _TargetPlan:
    """Find or create the target revision, evaluate its progress deadline, and plan its verification."""
    target, observed, made = _select_target(model, observed, known, artifact_plan, settings)
    if target is None:
        # until there is a target, pods of the serving revision may still move to a platform on which they were not
        # verified
        verification_plan = verification.plan(model, observed, None, settings=settings)
        return _TargetPlan(
            target=None,
            observed=verification_plan.observed,
            actions=verification_plan.actions,
            verification=verification_plan,
        )
    deadline = progress_deadline.evaluate(model, observed, target)
    verification_plan = verification.plan(model, deadline.observed, deadline.target, settings=settings)
    return _TargetPlan(
        target=deadline.target,
        observed=verification_plan.observed,
        # both write the same ControllerRevision, and the deadline's version is the later one
        actions=(*(deadline.actions or made), *verification_plan.actions),
        deadline=deadline,
        verification=verification_plan,
    )


def _plan_paused(model: EncoderModel, observed: ObservedState, known: Revision | None) -> Plan:
    """Report the state and change nothing except the gates of pods that may serve, so that traffic does not stop."""
    why = "Nothing is changed while spec.paused is true"
    pinned = revision.pinned_artifact(known) if known else None
    reason = Reason.PREPARED if pinned else Reason.PAUSED
    artifact_plan = ArtifactPlan(reason=reason, message=artifact.describe(pinned) if pinned else why, artifact=pinned)
    rollout_plan = rollout.plan(model, observed, known)
    inputs = status.StatusInputs(
        model=model,
        observed=observed,
        artifact_plan=artifact_plan,
        target=known,
        verification=None,
        rollout=rollout_plan,
        available_update=None,
        held_back=_held_back(
            (
                *rollout_plan.actions,
                *artifact.pvc_ownership(model, observed),
                *artifact.volume_expansion(model, observed),
            )
        ),
    )
    new_status = status.build_status(inputs)
    return Plan(
        actions=gates.gates_to_open(verification.parity_policy(model), observed),
        events=events_for(model.status, new_status),
        status=new_status,
        requeue_after=None,
    )


def _held_back(actions: tuple[Action, ...]) -> tuple[str, ...]:
    """Return the objects that would change if the model were not paused."""
    found = []
    for action in actions:
        match action:
            case Apply() if not apply_diff.is_up_to_date(action.manifest, action.live):
                found.append(f"{action.manifest['kind']} {action.manifest['metadata']['name']}")
            case Delete():
                found.append(f"{action.kind} {action.name}")
    return tuple(found)


def _revision_for_spec(model: EncoderModel, observed: ObservedState) -> Revision | None:
    """Return the newest revision that was created for the current spec."""
    same = [found for found in observed.revisions if revision.is_requested(model, found)]
    return max(same, key=lambda found: found.number, default=None)


def _recorded_update(model: EncoderModel, target: Revision) -> str:
    """Return the update to record: the requested one, or one that the revision has besides the user's annotation."""
    same = revision.annotated_update(target.update) == model.update
    return target.update if same or not model.update else model.update


def _select_target(
    model: EncoderModel,
    observed: ObservedState,
    known: Revision | None,
    artifact_plan: ArtifactPlan,
    settings: Settings,
) -> tuple[Revision | None, ObservedState, list[Action]]:
    """Return the target revision, with an action that creates it if necessary, and the observed state as it will then be."""
    if artifact_plan.artifact is None or observed.pvc is None:
        # a revision whose artifact is gone, because its PVC was recreated, keeps serving but is no target until the
        # artifact is back
        return None, observed, []
    if model.spec.suspend and known is None:
        return None, observed, []
    claim_uid = observed.pvc.uid
    newest = max((found.number for found in observed.revisions), default=0)
    digest = artifact_plan.artifact.digest
    # resolving a branch again may find the commit that is already served
    same = [
        r for r in observed.revisions if revision.matches_spec(model, r) and r.pinned["artifact"]["digest"] == digest
    ]
    target = max(same, key=lambda found: found.number, default=None)
    if target is None:
        target = revision.build(model, artifact_plan.artifact, shared=observed.pvc.shared, settings=settings)
        target = next((found for found in observed.revisions if found.hash == target.hash), target)
    origin = revision.unresolved_source(model)
    # the highest number marks the revision that was requested last, also after an edit is reverted
    wanted = replace(
        target,
        inputs_hash=revision.inputs_hash(model),
        pvc_uid=claim_uid,
        update=_recorded_update(model, target),
        unresolved_source=origin,
        retry=model.retry or target.retry if origin else "",
        number=target.number if target.number and target.number == newest else newest + 1,
    )
    if wanted == target:
        return target, observed, []
    others = tuple(found for found in observed.revisions if found.hash != wanted.hash)
    live = observed.live_revisions.get(wanted.hash)
    return (
        wanted,
        replace(observed, revisions=(*others, wanted)),
        [Apply(controller_revisions.build_revision(model, wanted), live)],
    )
