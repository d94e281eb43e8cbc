"""What a decision consists of: writes to make, in order, a status to show, and when to look again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from encoder_operator.revisions.hashing import Json
from encoder_operator.state.observed import GateCondition
from encoder_operator.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object so, by server-side apply, unless the fields that we own are so already."""

    manifest: Json
    live: Json | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of ours, and its own children in the background."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class SetGate:
    """Set the readiness gate of a pod."""

    pod: str
    uid: str
    gate: GateCondition


@dataclass(frozen=True, slots=True)
class Event:
    """An Event for people: something changed that they may want to know."""

    warning: bool
    reason: Reason
    message: str


Action = Apply | Delete | SetGate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One decision."""

    actions: tuple[Action, ...]
    events: tuple[Event, ...]
    status: Json
    requeue_after: float | None


def earliest(delays: Iterable[float | None]) -> float | None:
    """Return the shortest delay, or None where nothing is due."""
    return min((delay for delay in delays if delay is not None), default=None)
