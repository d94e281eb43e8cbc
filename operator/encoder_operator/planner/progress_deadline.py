"""The clock of a candidate: how long its pods have had a node and still do not start, and when it is given up for that.

The clock is the operator's own and is kept on the revision's record, so that neither a restart nor the clocks of nodes move it.
It runs only while the candidate could be verified if only its pods started: waiting for a node, or for a comparison, is no fault of
the candidate.
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

# most pods start before this, and are not worth writing anything down
_START_GRACE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressDeadline:
    """The wanted revision with its clock set, and what has become of it."""

    target: Revision
    observed: ObservedState
    actions: tuple[Action, ...] = ()
    # why it is overdue; empty while it is not
    overdue: str = ""
    requeue_after: float | None = None


def evaluate(model: EncoderModel, observed: ObservedState, target: Revision) -> ProgressDeadline:
    """Return the clock of ``target`` as it stands."""
    pods = [pod for pod in observed.pods if pod.revision == target.hash and not pod.deleting]
    proved = overall_state(model, observed.verdicts, target.hash) is not VerificationState.NONE
    if proved or any(pod.containers_ready for pod in pods):
        return _with_record(model, observed, target, {})
    given_up = _given_up_message(model, target)
    if given_up or model.spec.suspend:
        return ProgressDeadline(target=target, observed=observed, overdue=given_up)
    pod = next((pod for pod in pods if pod.node and pod.phase in ("Pending", "Running")), None)
    if pod is None:
        return _with_record(model, observed, target, {})
    patience = _START_GRACE_SECONDS - (observed.now - pod.created).total_seconds()
    if patience > 0 and not target.stalled:
        return ProgressDeadline(target=target, observed=observed, requeue_after=max(patience, 1.0))
    limit = model.spec.rollout.progress_deadline_seconds
    since = target.stalled.get("since") or format_time(observed.now)
    left = limit - (observed.now - (parse_time(since) or observed.now)).total_seconds()
    if left > 0:
        return replace(_with_record(model, observed, target, {"since": since}), requeue_after=max(left, 1.0))
    why = pod_diagnosis.diagnose(pod)
    message = f"pod {pod.name} has not started within {limit} s" + (f": {why.message}" if why else "")
    record = {"since": since, "limit": limit, "message": message[:500], "retry": model.retry}
    return replace(_with_record(model, observed, target, record), overdue=message)


def _given_up_message(model: EncoderModel, target: Revision) -> str:
    """Return why it was given up, unless another try is asked for since, or more patience."""
    record = target.stalled
    again = model.retry not in ("", record.get("retry"))
    more = model.spec.rollout.progress_deadline_seconds > record.get("limit", 0)
    return "" if again or more else str(record.get("message", ""))


def _with_record(model: EncoderModel, observed: ObservedState, target: Revision, stalled: Json) -> ProgressDeadline:
    """Write the clock down where it has changed."""
    if stalled == target.stalled:
        return ProgressDeadline(target=target, observed=observed)
    changed = replace(target, stalled=stalled)
    revisions = tuple(changed if found == target else found for found in observed.revisions)
    action = Apply(controller_revisions.build_revision(model, changed), observed.live_revisions.get(target.hash))
    return ProgressDeadline(target=changed, observed=replace(observed, revisions=revisions), actions=(action,))
