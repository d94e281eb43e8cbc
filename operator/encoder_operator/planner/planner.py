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
    facts: ObservedState
    actions: tuple[Action, ...]
    clock: ProgressDeadline | None = None
    verified: VerificationPlan | None = None


def plan(model: EncoderModel, facts: ObservedState, settings: Settings) -> Plan:
    """Return what to write, what to show, and when to look again.

    Raises:
        NotAccepted: The volume that is there can't serve what the spec asks for.
    """
    if facts.leftovers:
        found = status.waiting_for_deletion_status(model, facts)
        return Plan(actions=(), notices=(), status=found, wake_after=1.0)
    if facts.claim is not None:
        checks.check_volume(model.spec, model.name, model.namespace, facts.claim)
    known = _revision_for_spec(model, facts)
    if model.spec.paused:
        return _plan_paused(model, facts, known)
    # what is proved already waits for no write that may be refused
    gates = verification.gates_to_set(model, facts)
    prepared = artifact.plan(model, facts, known, settings)
    pursuit = _plan_target(model, facts, known, prepared, settings)
    target, facts, shared = pursuit.target, pursuit.facts, facts.claim is not None and facts.claim.shared
    rolled = rollout.plan(model, facts, target, pursuit.clock.overdue if pursuit.clock else "")
    view = status.StatusInputs(
        model=model,
        facts=facts,
        prepared=prepared,
        target=target,
        verified=pursuit.verified,
        rolled=rolled,
        update=revision.available_update(target, model, shared=shared, settings=settings) if target else None,
    )
    shown = status.build_status(view)
    return Plan(
        actions=(
            *gates,
            *prepared.actions,
            *pursuit.actions,
            # on a pass the Deployment's rollout waits for nothing but these
            *(gate for gate in verification.gates_to_set(model, facts) if gate not in gates),
            *rolled.actions,
            *rollout.prune(model, facts, rolled, target),
            # where the StorageClass does not let volumes grow, nothing else may wait for it
            *artifact.volume_expansion(model, facts),
        ),
        notices=status.events_for(model.status, shown),
        status=shown,
        wake_after=earliest(
            [
                prepared.wake_after,
                pursuit.verified.wake_after if pursuit.verified else None,
                pursuit.clock.wake_after if pursuit.clock else None,
                _GATEWAY_API_POLL_SECONDS if networking.gateway_api_missing(model, facts) else None,
                # ConfigMaps are not watched: a changed one is found by looking again
                _CONFIG_MAP_POLL_SECONDS if model.inputs else None,
            ]
        ),
    )


def _plan_target(
    model: EncoderModel, facts: ObservedState, known: Revision | None, prepared: ArtifactPlan, settings: Settings
) -> _TargetPlan:
    """Find or make the wanted revision, set its clock, and see to its proof."""
    target, facts, made = _select_target(model, facts, known, prepared, settings)
    if target is None:
        # what serves until there is one may come to a place where it was never compared
        verified = verification.plan(model, facts, None, settings=settings)
        return _TargetPlan(target=None, facts=verified.facts, actions=verified.actions, verified=verified)
    clock = progress_deadline.evaluate(model, facts, target)
    verified = verification.plan(model, clock.facts, clock.target, settings=settings)
    return _TargetPlan(
        target=clock.target,
        facts=verified.facts,
        # both write the same record, and the clock's is the later one
        actions=(*(clock.actions or made), *verified.actions),
        clock=clock,
        verified=verified,
    )


def _plan_paused(model: EncoderModel, facts: ObservedState, known: Revision | None) -> Plan:
    """Say how things are, and change nothing but the gates of pods that may serve: traffic must not stop for that."""
    why = "nothing is changed while spec.paused is true"
    pinned = revision.pinned_artifact(known) if known else None
    reason = Reason.PREPARED if pinned else Reason.PAUSED
    prepared = ArtifactPlan(reason=reason, message=artifact.describe(pinned) if pinned else why, artifact=pinned)
    view = status.StatusInputs(
        model=model,
        facts=facts,
        prepared=prepared,
        target=known,
        verified=None,
        rolled=rollout.plan(model, facts, known),
        update=None,
    )
    shown = status.build_status(view)
    return Plan(
        actions=verification.gates_to_open(verification.parity_policy(model), facts),
        notices=status.events_for(model.status, shown),
        status=shown,
        wake_after=None,
    )


def _revision_for_spec(model: EncoderModel, facts: ObservedState) -> Revision | None:
    """Return the newest revision that was made for what the spec says."""
    same = [found for found in facts.revisions if revision.is_requested(model, found)]
    return max(same, key=lambda found: found.number, default=None)


def _select_target(
    model: EncoderModel, facts: ObservedState, known: Revision | None, prepared: ArtifactPlan, settings: Settings
) -> tuple[Revision | None, ObservedState, list[Action]]:
    """Return the wanted revision, made if it must be, and the facts as they will then be."""
    if prepared.artifact is None or facts.claim is None:
        # a revision whose artifact is gone (its claim was made again) serves on; it is no target until that is back
        return None, facts, []
    if model.spec.suspend and known is None:
        return None, facts, []
    claim_uid = facts.claim.uid
    newest = max((found.number for found in facts.revisions), default=0)
    digest = prepared.artifact.digest
    # looking a branch up again may find what is served already
    same = [r for r in facts.revisions if revision.matches_spec(model, r) and r.pinned["artifact"]["digest"] == digest]
    target = max(same, key=lambda found: found.number, default=None)
    if target is None:
        target = revision.build(model, prepared.artifact, shared=facts.claim.shared, settings=settings)
        target = next((found for found in facts.revisions if found.hash == target.hash), target)
    origin = revision.unresolved_source(model)
    # the number says which was wanted last, also when an old spec comes back
    wanted = replace(
        target,
        inputs=revision.inputs_hash(model),
        claim_uid=claim_uid,
        update=model.update or target.update,
        origin=origin,
        retry=model.retry or target.retry if origin else "",
        number=target.number if target.number and target.number == newest else newest + 1,
    )
    if wanted == target:
        return target, facts, []
    others = tuple(found for found in facts.revisions if found.hash != wanted.hash)
    live = facts.live_revisions.get(wanted.hash)
    return (
        wanted,
        replace(facts, revisions=(*others, wanted)),
        [Apply(controller_revisions.build_revision(model, wanted), live)],
    )
