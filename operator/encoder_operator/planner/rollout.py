"""Plan the Deployment: which revision it runs, with how many replicas, and which revision is active."""

from __future__ import annotations

from dataclasses import dataclass

from encoder_operator import naming
from encoder_operator.client import apply_diff
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

# in addition to those in use
_HISTORY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """The Deployment's revision and replicas."""

    # the revision that the Deployment runs; None before the first one
    deployed: Revision | None
    replicas: int
    # the revision that receives traffic, or will once its pods are ready
    active: Revision | None
    target_may_serve: bool
    # why the target revision is not deployed, or was given up
    rejection: Problem | None
    actions: tuple[Action, ...]
    # paths in the Deployment that others have set
    foreign_fields: tuple[str, ...] = ()


def plan(model: EncoderModel, observed: ObservedState, target: Revision | None, overdue: str = "") -> RolloutPlan:
    """Return the Deployment to apply for the current verdicts; `overdue` says why the target exceeded its progress deadline."""
    state = overall_state(model, observed, target.hash) if target else VerificationState.NONE
    target_may_serve = target is not None and may_serve(model, state)
    previous = _previous(model, observed, target)
    rejection = _rejection(model, observed, target, state, overdue) if target else None
    # without a previous revision, a target that exceeded its deadline may still become ready
    failed = rejection is not None and (rejection.reason is Reason.PARITY_FAILED or previous is not None)
    deployed: Revision | None
    if target is not None and not failed:
        deployed, replicas = target, _replicas(model, target_may_serve=target_may_serve, previous=previous)
    elif previous is not None:
        deployed, replicas = previous, model.spec.serving.replicas
    else:
        # nothing may serve: scale the failed revision, or what is deployed now, to zero until there is a new revision
        deployed, replicas = target or _deployed_revision(observed), 0
    if model.spec.suspend:
        # do not change the template while there are no pods, so that resuming starts no rollout
        deployed, replicas = (_deployed_revision(observed) or deployed) if observed.deployment else None, 0
    actions: list[Action] = []
    foreign: tuple[str, ...] = ()
    if deployed is not None:
        live, wanted = (
            observed.deployment.live if observed.deployment else None,
            deployment.build(model, deployed, replicas),
        )
        actions += [*networking.plan(model, observed), Apply(wanted, live)]
        foreign = apply_diff.foreign_fields(wanted, live) if live else ()
    return RolloutPlan(
        deployed=deployed,
        replicas=replicas,
        active=_active_revision(observed, target if target_may_serve else None, previous),
        target_may_serve=target_may_serve,
        rejection=rejection,
        actions=tuple(actions),
        foreign_fields=foreign,
    )


def ready_pods(observed: ObservedState, revision: Revision | None) -> tuple[Pod, ...]:
    """Return the pods of `revision` that receive traffic."""
    if revision is None:
        return ()
    return tuple(pod for pod in observed.pods if pod.revision == revision.hash and pod.ready and not pod.deleting)


def prune(
    model: EncoderModel, observed: ObservedState, rollout_plan: RolloutPlan, target: Revision | None
) -> tuple[Action, ...]:
    """Return the ControllerRevisions to delete: old history, and verdicts that no longer count."""
    kept = {found.hash for found in (target, rollout_plan.deployed, rollout_plan.active) if found} | {
        p.revision for p in observed.pods
    }
    if observed.deployment:
        kept.add(observed.deployment.revision)
    passed = [
        r
        for r in observed.revisions
        if overall_state(model, observed, r.hash) in (VerificationState.PASSED, VerificationState.STALE)
    ]
    # many edits that never passed must not push a verified revision out of the history
    for revisions in (observed.revisions, passed):
        kept |= {found.hash for found in revisions[-_HISTORY:]}
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
    """Return whether a verdict about a single pod that is gone is superseded by another verdict on the same revision."""
    if not verdict.product.startswith(naming.SINGLE_POD):
        return False
    if any(naming.SINGLE_POD + pod.uid == verdict.product for pod in observed.pods):
        return False
    others = [v for v in observed.verdicts if v.revision == verdict.revision and v.name != verdict.name]
    if not verdict.passed and any(v.passed and v.thresholds == verdict.thresholds for v in others):
        # the failure of a single pod matters while the pod exists, or while nothing better is known about the revision
        return True
    return any(v.passed == verdict.passed and (v.created, v.name) > (verdict.created, verdict.name) for v in others)


def _rejection(
    model: EncoderModel, observed: ObservedState, target: Revision, state: VerificationState, overdue: str
) -> Problem | None:
    if state is VerificationState.FAILED and not may_serve(model, state):
        verdict = latest_verdict(model, observed.verdicts, target.hash)
        return Problem(Reason.PARITY_FAILED, verdict_message(verdict) if verdict else "")
    return Problem(Reason.PROGRESS_DEADLINE_EXCEEDED, overdue) if overdue else None


def _replicas(model: EncoderModel, *, target_may_serve: bool, previous: Revision | None) -> int:
    wanted = model.spec.serving.replicas
    # without a previous revision, one pod is enough to verify
    return wanted if target_may_serve or previous is not None else min(1, wanted)


def _previous(model: EncoderModel, observed: ObservedState, target: Revision | None) -> Revision | None:
    """Return the best other revision that may serve: one with ready pods before others, then the newest."""
    others = [found for found in observed.revisions if target is None or found.hash != target.hash]
    able = [found for found in others if _may_serve(model, observed, found)]
    return max(able, key=lambda found: (bool(ready_pods(observed, found)), found.number), default=None)


def _may_serve(model: EncoderModel, observed: ObservedState, found: Revision) -> bool:
    state = overall_state(model, observed, found.hash)
    if state is VerificationState.NONE:
        # a revision that was never verified, because checks were disabled, is kept only while it is deployed or has
        # ready pods
        deployed = observed.deployment is not None and observed.deployment.revision == found.hash
        return model.spec.parity.mode == "Disabled" and (deployed or bool(ready_pods(observed, found)))
    return may_serve(model, state)


def _deployed_revision(observed: ObservedState) -> Revision | None:
    if observed.deployment is None:
        return None
    return next((found for found in observed.revisions if found.hash == observed.deployment.revision), None)


def _active_revision(observed: ObservedState, serving: Revision | None, previous: Revision | None) -> Revision | None:
    if ready_pods(observed, serving):
        return serving
    others = [found for found in observed.revisions if ready_pods(observed, found)]
    if others:
        return max(others, key=lambda found: found.number)
    return serving or previous
