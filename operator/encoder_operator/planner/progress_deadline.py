"""Evaluate the progress deadline of the target revision: how long its pods have failed to start, and when to give it up.

The start time is stored in the revision's ControllerRevision, so neither a restart of the operator nor a node's clock
affects it. Only time during which the pod has a node counts: waiting for a node or for a parity check is not the
revision's fault. An engine that has crashed starts with the same record, so one that crashes during each parity check is
given up too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from encoder_operator.planner.actions import Action, Apply
from encoder_operator.planner.verification import VerificationState, overall_state
from encoder_operator.resources import controller_revisions
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import ObservedState, Revision, format_time, parse_time
from encoder_operator.status import pod_diagnosis

# most pods start within this time, which saves a write per rollout
_START_GRACE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressDeadline:
    """The target revision with its recorded deadline, and the result of the evaluation."""

    target: Revision
    observed: ObservedState
    actions: tuple[Action, ...] = ()
    # why the deadline is exceeded; empty if it is not
    overdue: str = ""
    requeue_after: float | None = None


def evaluate(model: EncoderModel, observed: ObservedState, target: Revision) -> ProgressDeadline:
    """Return the progress deadline of `target` at the current time."""
    pods = [pod for pod in observed.pods if pod.revision == target.hash and not pod.deleting]
    verified = overall_state(model, observed, target.hash) is not VerificationState.NONE
    ready = [pod for pod in pods if pod.containers_ready]
    if verified or any(not pod.restarts for pod in ready):
        return _with_record(model, observed, target, {})
    given_up = _given_up_message(model, target)
    if given_up or model.spec.suspend:
        return ProgressDeadline(target=target, observed=observed, overdue=given_up)
    # after a retry was requested, the revision has the whole deadline again
    stalled = {} if _is_retried(model, target) else target.stalled
    counted: Json = {key: stalled[key] for key in ("since", "restarts") if key in stalled}
    if ready:
        # restarted and ready again: waiting for the parity check does not count, but a further crash does
        counted = {**counted, "restarts": max(pod.restarts for pod in ready)} if "since" in counted else {}
        return _with_record(model, observed, target, counted)
    pod = next((pod for pod in pods if pod.node and pod.phase in ("Pending", "Running")), None)
    if pod is None:
        return _with_record(model, observed, target, {})
    if pod.restarts < counted.get("restarts", 0):
        # another pod than the one that crashed
        counted = {}
    elif pod.restarts == counted.get("restarts"):
        # the readiness probe failed, and the container still runs
        return ProgressDeadline(target=target, observed=observed)
    grace = _START_GRACE_SECONDS - (observed.now - pod.created).total_seconds()
    if grace > 0 and not counted:
        return replace(_with_record(model, observed, target, {}), requeue_after=max(grace, 1.0))
    limit = model.spec.rollout.progress_deadline_seconds
    since = counted.get("since") or format_time(observed.now)
    left = limit - (observed.now - (parse_time(since) or observed.now)).total_seconds()
    if left > 0:
        record = {**counted, "since": since}
        return replace(_with_record(model, observed, target, record), requeue_after=max(left, 1.0))
    why = pod_diagnosis.diagnose(pod)
    what = "has crashed repeatedly and was not verified" if "restarts" in counted else "has not started"
    message = f"Pod {pod.name} {what} within {limit} s" + (f": {why.message}" if why else "")
    record = {"since": since, "limit": limit, "message": message[:500], "retry": model.retry}
    return replace(_with_record(model, observed, target, record), overdue=message)


def _given_up_message(model: EncoderModel, target: Revision) -> str:
    """Return why the revision was given up, unless a retry was requested or the deadline was raised since."""
    record = target.stalled
    raised = model.spec.rollout.progress_deadline_seconds > record.get("limit", 0)
    return "" if _is_retried(model, target) or raised else str(record.get("message", ""))


def _is_retried(model: EncoderModel, target: Revision) -> bool:
    """Return whether a retry was requested since the revision was given up."""
    return "message" in target.stalled and model.retry not in ("", target.stalled.get("retry"))


def _with_record(model: EncoderModel, observed: ObservedState, target: Revision, stalled: Json) -> ProgressDeadline:
    """Record the deadline's state if it has changed."""
    if stalled == target.stalled:
        return ProgressDeadline(target=target, observed=observed)
    changed = replace(target, stalled=stalled)
    revisions = tuple(changed if found == target else found for found in observed.revisions)
    action = Apply(controller_revisions.build_revision(model, changed), observed.live_revisions.get(target.hash))
    return ProgressDeadline(target=changed, observed=replace(observed, revisions=revisions), actions=(action,))
