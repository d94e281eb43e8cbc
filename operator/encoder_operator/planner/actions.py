"""The result of planning: writes in order, the status to show, and when to reconcile again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from encoder_operator.revisions.hashing import Json
from encoder_operator.state.observed import GateCondition
from encoder_operator.status.reasons import EventReason, Reason


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply an object by server-side apply, unless the operator's fields are already as wanted."""

    manifest: Json
    live: Json | None


@dataclass(frozen=True, slots=True)
class DryRun:
    """Have the API server validate an object, and write neither it nor what comes after it if it is invalid."""

    manifest: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object and, in the background, its dependents."""

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
    """An Event about a change that users may want to know."""

    warning: bool
    reason: Reason | EventReason
    message: str


Action = Apply | DryRun | Delete | SetGate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of planning one reconcile."""

    actions: tuple[Action, ...]
    events: tuple[Event, ...]
    status: Json
    requeue_after: float | None


def earliest(delays: Iterable[float | None]) -> float | None:
    """Return the shortest delay, or None if there is none."""
    return min((delay for delay in delays if delay is not None), default=None)
