"""Events for changes of an EncoderModel's conditions."""

from __future__ import annotations

from encoder_operator.planner.actions import Event
from encoder_operator.revisions.hashing import Json
from encoder_operator.status.reasons import Reason

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
        Reason.TOKEN_SECRET_MISSING,
        Reason.VOLUME_NOT_MOUNTED,
        Reason.AUTH_FAILED,
        Reason.REPOSITORY_NOT_FOUND,
        Reason.REVISION_NOT_FOUND,
        Reason.FILE_NOT_FOUND,
        Reason.INSUFFICIENT_SPACE,
        Reason.CHECKSUM_MISMATCH,
        Reason.UNSUPPORTED,
        Reason.UNSUPPORTED_FILESYSTEM,
        Reason.PICKLE_REFUSED,
        Reason.REMOTE_CODE_REFUSED,
        Reason.STALLED,
        Reason.RATE_LIMITED,
        Reason.DOWNLOAD_FAILED,
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
    "Verified": frozenset({Reason.PARITY_PASSED}),
    "Ready": frozenset({Reason.READY}),
}


def events_for(old: Json, new: Json) -> tuple[Event, ...]:
    """Return the Events for the changes between two statuses, one per reason."""
    before = {entry["type"]: (entry["status"], entry["reason"]) for entry in old.get("conditions", [])}
    found: dict[str, Event] = {}
    for entry in new["conditions"]:
        normal = _NORMAL_EVENTS.get(entry["type"], frozenset())
        changed = before.get(entry["type"]) != (entry["status"], entry["reason"])
        if changed and (entry["reason"] in normal or entry["reason"] in WARNING_REASONS):
            warning = entry["reason"] in WARNING_REASONS
            # several conditions may change for the same reason; the first one provides the message
            found.setdefault(entry["reason"], Event(warning, Reason(entry["reason"]), entry["message"]))
    return tuple(found.values())
