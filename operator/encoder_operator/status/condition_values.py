"""Values of conditions, and the list of conditions as the status contains it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from encoder_operator.revisions.hashing import Json
from encoder_operator.state.observed import format_time
from encoder_operator.status.conditions import CONDITIONS
from encoder_operator.status.reasons import Reason

MESSAGE_LIMIT = 1024
_SPELLINGS = {True: "True", False: "False", None: "Unknown"}
# what a condition says if another one has the details
_SUMMARIES = {
    "ArtifactReady": "The artifact is not ready",
    "Verified": "No result of a parity check counts",
    "Available": "No pod receives traffic",
    "UpToDate": "The current spec is not served",
    "Progressing": "The operator waits",
    "Degraded": "A problem was detected",
    "UpdateAvailable": "The defaults have not been compared",
}
_IN_PROGRESS = "Work is in progress"


class ConditionValue(NamedTuple):
    """Status, reason and message of a condition. ``is_true`` is None if the status is Unknown."""

    is_true: bool | None
    reason: Reason
    message: str


def without_repetition(conditions: Mapping[str, ConditionValue]) -> dict[str, ConditionValue]:
    """Return the conditions with each message in the first condition that has it, and in `Ready`, which repeats its cause."""
    first: dict[str, str] = {}
    found = {}
    for name in CONDITIONS:
        entry = conditions[name]
        owner = first.setdefault(entry.message, name)
        if owner != name and name in _SUMMARIES:
            summary = _IN_PROGRESS if name == "Progressing" and entry.is_true else _SUMMARIES[name]
            entry = entry._replace(message=f"{summary}: see condition {owner}")
        found[name] = entry
    return found


def to_json(conditions: Mapping[str, ConditionValue], old: Json, generation: int, now: datetime) -> list[Json]:
    """Return the conditions for the status. Those whose status has not changed keep their lastTransitionTime."""
    before = {entry["type"]: entry for entry in old.get("conditions", [])}
    listed = []
    for name, entry in without_repetition(conditions).items():
        spelling = _SPELLINGS[entry.is_true]
        previous = before.get(name, {})
        since = previous.get("lastTransitionTime") if previous.get("status") == spelling else None
        listed.append(
            {
                "type": name,
                "status": spelling,
                "reason": entry.reason.value,
                "message": entry.message[:MESSAGE_LIMIT],
                "observedGeneration": generation,
                "lastTransitionTime": since or format_time(now),
            }
        )
    return listed


def transitions(old: Json, new: Json) -> list[Json]:
    """Return the conditions of `new` whose status or reason differs from `old`."""
    before = {entry["type"]: (entry.get("status"), entry.get("reason")) for entry in old.get("conditions", [])}
    return [entry for entry in new["conditions"] if before.get(entry["type"]) != (entry["status"], entry["reason"])]
