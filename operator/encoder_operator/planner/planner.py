"""The whole decision about one EncoderModel: facts in, plan out. Pure; the clock is one of the facts.

Each part works on what the parts before it will have done, so one pass goes as far as the cluster's state allows.
Stopping between any two writes is harmless: the next pass starts from what is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from encoder_operator.manager.settings import Settings
from encoder_operator.planner import artifact, networking, progress_deadline, rollout, verification
from encoder_operator.planner.actions import Action, Apply, Plan, earliest
from encoder_operator.planner.artifact import ArtifactPlan
from encoder_operator.planner.progress_deadline import ProgressDeadline
from encoder_operator.planner.verification import VerificationPlan
from encoder_operator.resources import controller_revisions
from encoder_operator.revisions import revision
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import ObservedState, Revision
from encoder_operator.status import status
from encoder_operator.status.reasons import Reason
from encoder_operator.validation import checks

_CONFIG_MAP_POLL_SECONDS = 60.0
# nor are kinds of resources
_GATEWAY_API_POLL_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetPlan:
    """What is done for the wanted revision, and the facts as they will then be."""

    target: Revision | None
    observed: ObservedState
    actions: tuple[Action, ...]
    deadline: ProgressDeadline | None = None
    verification: VerificationPlan | None = None


def plan(model: EncoderModel, observed: ObservedState, settings: Settings) -> Plan:
    """Return what to write, what to show, and when to look again.

    Raises:
        NotAccepted: The volume that is there can't serve what the spec asks for.
    """
    if observed.stale_children:
        found = status.waiting_for_deletion_status(model, observed)
        return Plan(actions=(), events=(), status=found, requeue_after=1.0)
    if observed.pvc is not None:
        checks.check_volume(model.spec, model.name, model.namespace, observed.pvc)
    known = _revision_for_spec(model, observed)
    if model.spec.paused:
        return _plan_paused(model, observed, known)
    # what is proved already waits for no write that may be refused
    gates = verification.gates_to_set(model, observed)
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
            *gates,
            *artifact_plan.actions,
            *target_plan.actions,
            # on a pass the Deployment's rollout waits for nothing but these
            *(gate for gate in verification.gates_to_set(model, observed) if gate not in gates),
            *rollout_plan.actions,
            *rollout.prune(model, observed, rollout_plan, target),
            # where the StorageClass does not let volumes grow, nothing else may wait for it
            *artifact.volume_expansion(model, observed),
        ),
        events=status.events_for(model.status, new_status),
        status=new_status,
        requeue_after=earliest(
            [
                artifact_plan.requeue_after,
                target_plan.verification.requeue_after if target_plan.verification else None,
                target_plan.deadline.requeue_after if target_plan.deadline else None,
                _GATEWAY_API_POLL_SECONDS if networking.gateway_api_missing(model, observed) else None,
                # ConfigMaps are not watched: a changed one is found by looking again
                _CONFIG_MAP_POLL_SECONDS if model.inputs_hash else None,
            ]
        ),
    )


def _plan_target(
    model: EncoderModel,
    observed: ObservedState,
    known: Revision | None,
    artifact_plan: ArtifactPlan,
    settings: Settings,
) -> _TargetPlan:
    """Find or make the wanted revision, set its clock, and see to its proof."""
    target, observed, made = _select_target(model, observed, known, artifact_plan, settings)
    if target is None:
        # what serves until there is one may come to a place where it was never compared
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
        # both write the same record, and the clock's is the later one
        actions=(*(deadline.actions or made), *verification_plan.actions),
        deadline=deadline,
        verification=verification_plan,
    )


def _plan_paused(model: EncoderModel, observed: ObservedState, known: Revision | None) -> Plan:
    """Say how things are, and change nothing but the gates of pods that may serve: traffic must not stop for that."""
    why = "nothing is changed while spec.paused is true"
    pinned = revision.pinned_artifact(known) if known else None
    reason = Reason.PREPARED if pinned else Reason.PAUSED
    artifact_plan = ArtifactPlan(reason=reason, message=artifact.describe(pinned) if pinned else why, artifact=pinned)
    inputs = status.StatusInputs(
        model=model,
        observed=observed,
        artifact_plan=artifact_plan,
        target=known,
        verification=None,
        rollout=rollout.plan(model, observed, known),
        available_update=None,
    )
    new_status = status.build_status(inputs)
    return Plan(
        actions=verification.gates_to_open(verification.parity_policy(model), observed),
        events=status.events_for(model.status, new_status),
        status=new_status,
        requeue_after=None,
    )


def _revision_for_spec(model: EncoderModel, observed: ObservedState) -> Revision | None:
    """Return the newest revision that was made for what the spec says."""
    same = [found for found in observed.revisions if revision.is_requested(model, found)]
    return max(same, key=lambda found: found.number, default=None)


def _select_target(
    model: EncoderModel,
    observed: ObservedState,
    known: Revision | None,
    artifact_plan: ArtifactPlan,
    settings: Settings,
) -> tuple[Revision | None, ObservedState, list[Action]]:
    """Return the wanted revision, made if it must be, and the facts as they will then be."""
    if artifact_plan.artifact is None or observed.pvc is None:
        # a revision whose artifact is gone (its claim was made again) serves on; it is no target until that is back
        return None, observed, []
    if model.spec.suspend and known is None:
        return None, observed, []
    claim_uid = observed.pvc.uid
    newest = max((found.number for found in observed.revisions), default=0)
    digest = artifact_plan.artifact.digest
    # looking a branch up again may find what is served already
    same = [
        r for r in observed.revisions if revision.matches_spec(model, r) and r.pinned["artifact"]["digest"] == digest
    ]
    target = max(same, key=lambda found: found.number, default=None)
    if target is None:
        target = revision.build(model, artifact_plan.artifact, shared=observed.pvc.shared, settings=settings)
        target = next((found for found in observed.revisions if found.hash == target.hash), target)
    origin = revision.unresolved_source(model)
    # the number says which was wanted last, also when an old spec comes back
    wanted = replace(
        target,
        inputs_hash=revision.inputs_hash(model),
        pvc_uid=claim_uid,
        update=model.update or target.update,
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
