"""Events for changes of an EncoderModel's conditions."""

from __future__ import annotations

from collections.abc import Iterator

from encoder_operator.planner.actions import Event
from encoder_operator.revisions.hashing import Json
from encoder_operator.status.condition_values import transitions
from encoder_operator.status.messages import parity_message, plural
from encoder_operator.status.reasons import PREP_ERRORS, EventReason, Reason

# reasons that need the user's attention
WARNING_REASONS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.UNKNOWN_PLUGIN,
        Reason.UNSUPPORTED_ACCELERATOR,
        Reason.ARGUMENT_DENIED,
        Reason.ENVIRONMENT_DENIED,
        Reason.POD_TEMPLATE_DENIED,
        Reason.LOAD_FORMAT_UNSUPPORTED,
        Reason.REMOTE_CODE_DENIED,
        Reason.NOT_PERMITTED,
        Reason.ONE_NODE_ONLY,
        Reason.ONE_POD_ONLY,
        Reason.NO_IMAGE,
        Reason.NAME_CONFLICT,
        Reason.CLAIM_MISSING,
        Reason.INPUTS_MISSING,
        Reason.LABEL_SET_MISSING,
        Reason.TOKEN_SECRET_MISSING,
        Reason.VOLUME_NOT_MOUNTED,
        *PREP_ERRORS,
        Reason.OUT_OF_MEMORY,
        Reason.DEADLINE_EXCEEDED,
        Reason.PREPARATION_FAILED,
        Reason.IMAGE_PULL_FAILED,
        Reason.INSUFFICIENT_GPU,
        Reason.CRASH_LOOP,
        Reason.PODS_REFUSED,
        Reason.WRITE_REFUSED,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.GATEWAY_API_MISSING,
        Reason.FOREIGN_FIELD,
        Reason.PARITY_FAILED,
        Reason.INCONCLUSIVE,
    }
)
# reasons of Normal events, by condition
_NORMAL_EVENTS = {
    "Accepted": frozenset({Reason.REMOTE_CODE_TRUSTED}),
    "ArtifactReady": frozenset({Reason.PREPARED}),
    "Available": frozenset({Reason.SCALED_TO_ZERO}),
    "Ready": frozenset({Reason.READY}),
}
_GIVEN_UP = frozenset({Reason.PARITY_FAILED, Reason.PROGRESS_DEADLINE_EXCEEDED})


def events_for(old: Json, new: Json) -> tuple[Event, ...]:
    """Return the Events for the changes between two statuses, at most one for each reason and message."""
    # a status of version 0.1.0 names no Jobs, and those that exist have not just started
    started = () if old.get("conditions") and "desiredReplicas" not in old else _started(old, new)
    found = [*started, *_passed(old, new), *_reasons(old, new), *_outcomes(old, new)]
    return tuple(dict.fromkeys(found))


def events_on_api_error(old: Json, new: Json) -> tuple[Event, ...]:
    """Return the Events for the changes between two statuses, the second of which reports a rejected write: no Job has started."""
    return tuple(dict.fromkeys([*_passed(old, new), *_reasons(old, new), *_outcomes(old, new)]))


def _started(old: Json, new: Json) -> Iterator[Event]:
    job = new.get("prepJob")
    if job and job != old.get("prepJob"):
        yield Event(False, EventReason.PREP_STARTED, f"Job {job} prepares the checkpoint")
    candidate, active = new.get("candidateRevision"), new.get("activeRevision")
    known = (old.get("candidateRevision"), old.get("activeRevision"))
    started = next((found for found in (candidate, active) if found and found not in known), None)
    if started:
        pods = plural(new.get("desiredReplicas", 0), "pod")
        instead = f" instead of revision {active}" if candidate and active else ""
        yield Event(False, EventReason.ROLLOUT_STARTED, f"Rolling out revision {started} to {pods}{instead}")
    job = new.get("parityJob")
    # attempts count up while a Job of an earlier one exists; a lower number is an older Job, after a newer one is gone
    if job and _attempt(job) > _attempt(old.get("parityJob") or ""):
        what = f"Job {job} compares revision {_revision(job)} with the reference outputs"
        yield Event(False, EventReason.PARITY_STARTED, what)


def _passed(old: Json, new: Json) -> Iterator[Event]:
    """Return an Event for each passed parity check that the old status did not have."""
    before = [old.get("parity"), old.get("candidateParity")]
    for check in (new.get("parity"), new.get("candidateParity")):
        if check and check["result"] == "Passed" and check not in before:
            message = parity_message(check["revision"], check["accelerator"], check)
            yield Event(False, Reason.PARITY_PASSED, message)


def _reasons(old: Json, new: Json) -> Iterator[Event]:
    """Return the Events for reasons that a condition has taken on, one per reason."""
    found: dict[str, Event] = {}
    for entry in transitions(old, new):
        normal = _NORMAL_EVENTS.get(entry["type"], frozenset())
        if entry["reason"] in normal or entry["reason"] in WARNING_REASONS:
            reason = Reason(entry["reason"])
            found.setdefault(reason, Event(reason in WARNING_REASONS, reason, _details(new, reason)))
    yield from found.values()


def _outcomes(old: Json, new: Json) -> Iterator[Event]:
    changed = {entry["type"]: entry for entry in transitions(old, new)}
    active, candidate = new.get("activeRevision"), new.get("candidateRevision")
    outcome = changed.get("UpToDate")
    if outcome and outcome["reason"] in _GIVEN_UP and active and candidate:
        why = _details(new, Reason(outcome["reason"]))
        yield Event(True, EventReason.ROLLED_BACK, f"Rolled back from revision {candidate} to revision {active}: {why}")
    degraded = _became_true(old, changed.get("Degraded"))
    if degraded:
        wanted, of = new.get("desiredReplicas", 0), f" of revision {active}" if active else ""
        pods = f"{new.get('readyReplicas', 0)} of {plural(wanted, 'pod')}{of} {'is' if wanted == 1 else 'are'} ready"
        yield Event(True, EventReason.DEGRADED, f"Degraded because of {degraded['reason']}: {pods}")


def _became_true(old: Json, entry: Json | None) -> Json | None:
    """Return the condition if it is True now and was not before; its reason may change without another Event."""
    before = next(
        (found["status"] for found in old.get("conditions", []) if entry and found["type"] == entry["type"]), ""
    )
    return entry if entry and entry["status"] == "True" and before != "True" else None


def _details(new: Json, reason: Reason) -> str:
    """Return the message of the first condition that has the reason, which has the details."""
    return str(next(entry["message"] for entry in new["conditions"] if entry["reason"] == reason))


def _revision(job: str) -> str:
    # as in naming.parity_job
    return job.rpartition("-parity-")[0].rpartition("-")[2]


def _attempt(job: str) -> int:
    number = job.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
