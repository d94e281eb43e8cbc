"""The whole decision about one EncoderModel: facts in, plan out. Pure; the clock is one of the facts.

Each part works on what the parts before it will have done, so one pass goes as far as the cluster's state allows.
Stopping between any two writes is harmless: the next pass starts from what is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from encoder_operator.manager.settings import Settings
from encoder_operator.planner import artifact, networking, progress_deadline, rollout, verification
from encoder_operator.planner.actions import Action, Apply, Plan, soonest
from encoder_operator.planner.artifact import Preparation
from encoder_operator.planner.progress_deadline import Clock
from encoder_operator.planner.verification import Verification
from encoder_operator.resources import controller_revisions
from encoder_operator.revisions import revision
from encoder_operator.state.desired import Model
from encoder_operator.state.observed import Facts, Revision
from encoder_operator.status import status
from encoder_operator.status.reasons import Reason
from encoder_operator.validation import checks

_INPUTS_SECONDS = 60.0
# nor are kinds of resources
_ROUTE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pursuit:
    """What is done for the wanted revision, and the facts as they will then be."""

    target: Revision | None
    facts: Facts
    actions: tuple[Action, ...]
    clock: Clock | None = None
    verified: Verification | None = None


def decide(model: Model, facts: Facts, settings: Settings) -> Plan:
    """Return what to write, what to show, and when to look again.

    Raises:
        NotAccepted: The volume that is there can't serve what the spec asks for.
    """
    if facts.leftovers:
        found = status.waiting(model, facts)
        return Plan(actions=(), notices=(), status=found, wake_after=1.0)
    if facts.claim is not None:
        checks.check_volume(model.spec, model.name, model.namespace, facts.claim)
    known = _by_inputs(model, facts)
    if model.spec.paused:
        return _paused(model, facts, known)
    # what is proved already waits for no write that may be refused
    gates = verification.gates(model, facts)
    prepared = artifact.decide(model, facts, known, settings)
    pursuit = _pursue(model, facts, known, prepared, settings)
    target, facts, shared = pursuit.target, pursuit.facts, facts.claim is not None and facts.claim.shared
    rolled = rollout.decide(model, facts, target, pursuit.clock.overdue if pursuit.clock else "")
    view = status.View(
        model=model,
        facts=facts,
        prepared=prepared,
        target=target,
        verified=pursuit.verified,
        rolled=rolled,
        update=revision.outdated(target, model, shared=shared, settings=settings) if target else None,
    )
    shown = status.observe(view)
    return Plan(
        actions=(
            *gates,
            *prepared.actions,
            *pursuit.actions,
            # on a pass the Deployment's rollout waits for nothing but these
            *(gate for gate in verification.gates(model, facts) if gate not in gates),
            *rolled.actions,
            *rollout.prune(model, facts, rolled, target),
            # where the StorageClass does not let volumes grow, nothing else may wait for it
            *artifact.growth(model, facts),
        ),
        notices=status.notices(model.status, shown),
        status=shown,
        wake_after=soonest(
            [
                prepared.wake_after,
                pursuit.verified.wake_after if pursuit.verified else None,
                pursuit.clock.wake_after if pursuit.clock else None,
                _ROUTE_SECONDS if networking.routeless(model, facts) else None,
                # ConfigMaps are not watched: a changed one is found by looking again
                _INPUTS_SECONDS if model.inputs else None,
            ]
        ),
    )


def _pursue(model: Model, facts: Facts, known: Revision | None, prepared: Preparation, settings: Settings) -> _Pursuit:
    """Find or make the wanted revision, set its clock, and see to its proof."""
    target, facts, made = _target(model, facts, known, prepared, settings)
    if target is None:
        # what serves until there is one may come to a place where it was never compared
        verified = verification.decide(model, facts, None, settings=settings)
        return _Pursuit(target=None, facts=verified.facts, actions=verified.actions, verified=verified)
    clock = progress_deadline.decide(model, facts, target)
    verified = verification.decide(model, clock.facts, clock.target, settings=settings)
    return _Pursuit(
        target=clock.target,
        facts=verified.facts,
        # both write the same record, and the clock's is the later one
        actions=(*(clock.actions or made), *verified.actions),
        clock=clock,
        verified=verified,
    )


def _paused(model: Model, facts: Facts, known: Revision | None) -> Plan:
    """Say how things are, and change nothing but the gates of pods that may serve: traffic must not stop for that."""
    why = "nothing is changed while spec.paused is true"
    pinned = revision.artifact_of(known) if known else None
    reason = Reason.PREPARED if pinned else Reason.PAUSED
    prepared = Preparation(reason=reason, message=artifact.about(pinned) if pinned else why, artifact=pinned)
    view = status.View(
        model=model,
        facts=facts,
        prepared=prepared,
        target=known,
        verified=None,
        rolled=rollout.decide(model, facts, known),
        update=None,
    )
    shown = status.observe(view)
    return Plan(
        actions=verification.kept_open(verification.terms_of(model), facts),
        notices=status.notices(model.status, shown),
        status=shown,
        wake_after=None,
    )


def _by_inputs(model: Model, facts: Facts) -> Revision | None:
    """Return the newest revision that was made for what the spec says."""
    same = [found for found in facts.revisions if revision.asked_for(model, found)]
    return max(same, key=lambda found: found.number, default=None)


def _target(
    model: Model, facts: Facts, known: Revision | None, prepared: Preparation, settings: Settings
) -> tuple[Revision | None, Facts, list[Action]]:
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
    same = [r for r in facts.revisions if revision.is_of(model, r) and r.pinned["artifact"]["digest"] == digest]
    target = max(same, key=lambda found: found.number, default=None)
    if target is None:
        target = revision.render(model, prepared.artifact, shared=facts.claim.shared, settings=settings)
        target = next((found for found in facts.revisions if found.hash == target.hash), target)
    origin = revision.origin(model)
    # the number says which was wanted last, also when an old spec comes back
    wanted = replace(
        target,
        inputs=revision.inputs(model),
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
        [Apply(controller_revisions.revision(model, wanted), live)],
    )
