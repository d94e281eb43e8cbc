"""Decides which revision the Deployment holds, with how many pods, and which revision is the one that answers."""

from __future__ import annotations

from dataclasses import dataclass

from encoder_operator import naming
from encoder_operator.planner import networking
from encoder_operator.planner.actions import Action, Apply, Delete
from encoder_operator.planner.verification import (
    VerificationState,
    latest_verdict,
    may_serve,
    overall_state,
    verdict_message,
)
from encoder_operator.resources import deployment
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import ObservedState, Pod, Revision, Verdict
from encoder_operator.status.pod_diagnosis import Problem
from encoder_operator.status.reasons import Reason

# besides those in use
_HISTORY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """What the Deployment should be."""

    # the revision that it holds; None while there has never been one
    deployed: Revision | None
    replicas: int
    # the revision that answers requests, or would if its pods were ready
    active: Revision | None
    target_may_serve: bool
    # why the wanted revision is not held, or is not wanted any more
    rejection: Problem | None
    actions: tuple[Action, ...]


def plan(model: EncoderModel, observed: ObservedState, target: Revision | None, overdue: str = "") -> RolloutPlan:
    """Return what the Deployment should be, given what is proved, and why the candidate is overdue if it is."""
    state = overall_state(model, observed.verdicts, target.hash) if target else VerificationState.NONE
    target_serves = target is not None and may_serve(model, state)
    former = _previous(model, observed, target)
    refused = _rejection(model, observed, target, state, overdue) if target else None
    # with nothing to fall back on, a late candidate may still come round
    failed = refused is not None and (refused.reason is Reason.PARITY_FAILED or former is not None)
    held: Revision | None
    if target is not None and not failed:
        held, replicas = target, _replicas(model, target_serves=target_serves, former=former)
    elif former is not None:
        held, replicas = former, model.spec.serving.replicas
    else:
        # nothing may serve: what was refused stays in place with no pods, or as it is until there is a new revision
        held, replicas = target or _deployed_revision(observed), 0
    if model.spec.suspend:
        # which template a Deployment without pods has is nobody's business: leave it, so that nothing rolls later
        held, replicas = (_deployed_revision(observed) or held) if observed.deployment else None, 0
    actions: list[Action] = []
    if held is not None:
        live = observed.deployment.live if observed.deployment else None
        actions += [*networking.plan(model, observed), Apply(deployment.build(model, held, replicas), live)]
    return RolloutPlan(
        deployed=held,
        replicas=replicas,
        active=_active_revision(observed, target if target_serves else None, former),
        target_may_serve=target_serves,
        rejection=refused,
        actions=tuple(actions),
    )


def ready_pods(observed: ObservedState, revision: Revision | None) -> tuple[Pod, ...]:
    """Return the pods of ``revision`` that get traffic."""
    if revision is None:
        return ()
    return tuple(pod for pod in observed.pods if pod.revision == revision.hash and pod.ready and not pod.deleting)


def prune(
    model: EncoderModel, observed: ObservedState, rollout: RolloutPlan, target: Revision | None
) -> tuple[Action, ...]:
    """Return the records to delete: history beyond the last few, and verdicts that no longer count."""
    kept = {found.hash for found in (target, rollout.deployed, rollout.active) if found} | {
        p.revision for p in observed.pods
    }
    if observed.deployment:
        kept.add(observed.deployment.revision)
    passed = [
        r
        for r in observed.revisions
        if overall_state(model, observed.verdicts, r.hash) in (VerificationState.PASSED, VerificationState.STALE)
    ]
    # many edits that were never proved push out none that was
    for some in (observed.revisions, passed):
        kept |= {found.hash for found in some[-_HISTORY:]}
    actions: list[Action] = [
        Delete("ControllerRevision", f"{model.name}-{found.hash}")
        for found in observed.revisions
        if found.hash not in kept
    ]
    for verdict in observed.verdicts:
        retried = not verdict.passed and model.retry not in ("", verdict.retry)
        if retried or verdict.revision not in kept or _is_superseded(observed, verdict):
            actions.append(Delete("ControllerRevision", verdict.name))
    return tuple(actions)


def _is_superseded(observed: ObservedState, verdict: Verdict) -> bool:
    """Whether it speaks of one pod that is gone, and another verdict keeps what was proved of the revision."""
    if not verdict.product.startswith(naming.SINGLE_POD):
        return False
    if any(naming.SINGLE_POD + pod.uid == verdict.product for pod in observed.pods):
        return False
    others = [v for v in observed.verdicts if v.revision == verdict.revision and v.name != verdict.name]
    if not verdict.passed and any(v.passed and v.thresholds == verdict.thresholds for v in others):
        # that one pod was wrong is news while it is there, or while there is nothing better to say of its revision
        return True
    return any(v.passed == verdict.passed and (v.created, v.name) > (verdict.created, verdict.name) for v in others)


def _rejection(
    model: EncoderModel, observed: ObservedState, target: Revision, state: VerificationState, overdue: str
) -> Problem | None:
    if state is VerificationState.FAILED and not may_serve(model, state):
        verdict = latest_verdict(model, observed.verdicts, target.hash)
        return Problem(Reason.PARITY_FAILED, verdict_message(verdict) if verdict else "")
    return Problem(Reason.PROGRESS_DEADLINE_EXCEEDED, overdue) if overdue else None


def _replicas(model: EncoderModel, *, target_serves: bool, former: Revision | None) -> int:
    wanted = model.spec.serving.replicas
    # without anything to fall back on, one pod is enough to find out
    return wanted if target_serves or former is not None else min(1, wanted)


def _previous(model: EncoderModel, observed: ObservedState, target: Revision | None) -> Revision | None:
    """Return the newest other revision that may serve; one that serves right now is better than one that once did."""
    others = [found for found in observed.revisions if target is None or found.hash != target.hash]
    able = [found for found in others if _may_serve(model, observed, found)]
    return max(able, key=lambda found: (bool(ready_pods(observed, found)), found.number), default=None)


def _may_serve(model: EncoderModel, observed: ObservedState, found: Revision) -> bool:
    state = overall_state(model, observed.verdicts, found.hash)
    if state is VerificationState.NONE:
        # a revision from a time without checks is worth keeping only while it answers, or is what there is
        deployed = observed.deployment is not None and observed.deployment.revision == found.hash
        return model.spec.parity.mode == "Disabled" and (deployed or bool(ready_pods(observed, found)))
    return may_serve(model, state)


def _deployed_revision(observed: ObservedState) -> Revision | None:
    if observed.deployment is None:
        return None
    return next((found for found in observed.revisions if found.hash == observed.deployment.revision), None)


def _active_revision(observed: ObservedState, serving: Revision | None, former: Revision | None) -> Revision | None:
    if ready_pods(observed, serving):
        return serving
    others = [found for found in observed.revisions if ready_pods(observed, found)]
    if others:
        return max(others, key=lambda found: found.number)
    return serving or former
