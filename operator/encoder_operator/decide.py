"""The whole decision about one EncoderModel: facts in, plan out. Pure; the clock is one of the facts.

Each part works on what the parts before it will have done, so one pass goes as far as the cluster's state allows.
Stopping between any two writes is harmless: the next pass starts from what is there.
"""

from __future__ import annotations

from dataclasses import replace

from encoder_operator import checks, children, deadline, preparation, revision, rollout, status, verification
from encoder_operator.facts import Facts, Revision
from encoder_operator.manifests import records
from encoder_operator.model import Model
from encoder_operator.plan import Action, Apply, Delete, Plan, soonest
from encoder_operator.preparation import Preparation
from encoder_operator.reasons import Reason
from encoder_operator.settings import Settings

_INPUTS_SECONDS = 60.0
# nor are kinds of resources
_ROUTE_SECONDS = 60.0


def decide(model: Model, facts: Facts, settings: Settings) -> Plan:
    """Return what to write, what to show, and when to look again.

    Raises:
        NotAccepted: The volume that is there can't serve what the spec asks for.
    """
    if facts.leftovers:
        found = status.waiting(model, facts)
        return Plan(actions=(), notices=(), status=found, wake_after=1.0)
    if facts.claim is not None and not facts.claim.shared:
        checks.check_one_node(model.spec, model.name, model.namespace)
    known = _by_inputs(model, facts)
    if model.spec.paused:
        return _paused(model, facts, known)
    prepared = preparation.decide(model, facts, known, settings)
    actions: list[Action] = list(prepared.actions)
    target, facts, made = _target(model, facts, known, prepared, settings)
    shared = facts.claim is not None and facts.claim.shared
    verified, clock = None, None
    if target is not None:
        clock = deadline.decide(model, facts, target)
        target, facts = clock.target, clock.facts
        # both write the same record, and the clock's is the later one
        actions += clock.actions or made
        verified = verification.decide(model, facts, target, shared=shared, settings=settings)
        facts = verified.facts
        actions += verified.actions
    else:
        # without a target nothing was made
        actions += [Delete("Job", job.name) for job in facts.parity_jobs if not job.finished and not job.deleting]
    rolled = rollout.decide(model, facts, target, clock.overdue if clock else "")
    # gates first: on a pass the Deployment's rollout waits for nothing but them
    actions += verification.gates(model, facts)
    actions += rolled.actions
    actions += rollout.prune(model, facts, rolled, target)
    update = None
    if target is not None:
        update = revision.outdated(target, model, shared=shared, settings=settings)
    view = status.View(
        model=model, facts=facts, prepared=prepared, target=target, verified=verified, rolled=rolled, update=update
    )
    shown = status.observe(view)
    return Plan(
        actions=tuple(actions),
        notices=status.notices(model.status, shown),
        status=shown,
        wake_after=soonest(
            [
                prepared.wake_after,
                verified.wake_after if verified else None,
                clock.wake_after if clock else None,
                _ROUTE_SECONDS if children.routeless(model, facts) else None,
                # ConfigMaps are not watched: a changed one is found by looking again
                _INPUTS_SECONDS if model.inputs else None,
            ]
        ),
    )


def _paused(model: Model, facts: Facts, known: Revision | None) -> Plan:
    """Say how things are, and change nothing but the gates of pods that are proved: traffic must not stop for that."""
    why = "nothing is changed while spec.paused is true"
    artifact = revision.artifact_of(known) if known else None
    reason = Reason.PREPARED if artifact else Reason.PAUSED
    prepared = Preparation(reason=reason, message=preparation.about(artifact) if artifact else why, artifact=artifact)
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
        actions=verification.kept_open(facts),
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
    return wanted, replace(facts, revisions=(*others, wanted)), [Apply(records.revision(model, wanted), live)]
