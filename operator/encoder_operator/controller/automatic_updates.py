"""Limit the number of automatic updates at the same time, over all namespaces."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from encoder_operator.manager.settings import Updates
from encoder_operator.naming import NamespacedName
from encoder_operator.planner import automatic_update
from encoder_operator.revisions.hashing import Json

# after a start, every model is reconciled once within this time, and updates in progress are known
_WARM_UP_SECONDS = 60.0


class AutomaticUpdates:
    """Automatic updates in progress, by EncoderModel.

    Args:
        limits: The update window, and the number of updates at the same time.
        warm_up: Seconds after the start in which no update starts.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self, limits: Updates, *, warm_up: float = _WARM_UP_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._begin = clock() + warm_up
        self._running: set[NamespacedName] = set()

    def may_start(self, key: NamespacedName, now: datetime) -> bool:
        """Return whether an update of the model may start or continue to be requested."""
        if key in self._running:
            return True
        free = len(self._running) < self._limits.max_at_once
        return free and self._clock() >= self._begin and automatic_update.is_open(self._limits.window, now)

    def set(self, key: NamespacedName, spec: Json, status: Json) -> None:
        """Record whether the model is being updated, by its spec and the planned status."""
        automatic = (spec.get("rollout") or {}).get("updatePolicy") == "Automatic"
        if automatic and not _is_stopped(spec) and automatic_update.is_in_progress(status):
            self._running.add(key)
        else:
            self._running.discard(key)

    def remove(self, key: NamespacedName) -> None:
        """Remove a deleted EncoderModel."""
        self._running.discard(key)


def _is_stopped(spec: Json) -> bool:
    """Return whether an update waits for the user, or for an autoscaler, so that it must not keep other models waiting."""
    without_pods = (spec.get("serving") or {}).get("replicas", 1) == 0 or spec.get("suspend")
    return bool(without_pods or spec.get("paused"))
