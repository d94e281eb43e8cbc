"""The limit on prep Jobs that run at once, over all namespaces: who has a place, and who waits for one.

The API server knows which Jobs run; this only counts them without asking each time. Deciding to start one and taking its place
happen in one turn of the event loop, so two looks never take the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from encoder_operator import naming
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json

# labels and fields of the Jobs that may have a place. Those that have succeeded are most of them, one for each model: thousands,
# read in full, would be more memory than all the rest
UNFINISHED_PREP_JOBS = {naming.COMPONENT: "prep"}, {"status.successful": "0"}


class PrepSlots:
    """Places for prep Jobs."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[NamespacedName, frozenset[str]] = {}
        self._reserved: set[NamespacedName] = set()
        # in the order in which they came
        self._waiting: dict[NamespacedName, None] = {}
        self._enqueue: Callable[[NamespacedName], None] = lambda key: None

    def on_free(self, wake: Callable[[NamespacedName], None]) -> None:
        """Say who wakes the next in line."""
        self._enqueue = wake

    def holds_slot(self, key: NamespacedName) -> bool:
        """Return whether a model's Job runs, as far as is known."""
        return key in self._running or key in self._reserved

    def used_by_others(self, key: NamespacedName) -> int:
        """Return how many places others have; 0 for one that has a place itself."""
        if key in self._running:
            return 0
        return len((self._running.keys() | self._reserved) - {key})

    def reserve(self, key: NamespacedName) -> None:
        """Note that a Job is about to be made."""
        self._reserved.add(key)
        self._waiting.pop(key, None)
        self._export()

    def wait(self, key: NamespacedName) -> None:
        """Note that a model waits for a place."""
        self._waiting.setdefault(key)
        self._export()
        # a place may have become free since this one was told that there is none
        self._enqueue_waiting()

    def set_jobs(self, key: NamespacedName, unfinished: Iterable[str]) -> None:
        """Note which unfinished Jobs a model has by what the API server says; empty for none, also of a model that is gone."""
        jobs = frozenset(unfinished)
        self._reserved.discard(key)
        if jobs:
            self._running[key] = jobs
        else:
            self._running.pop(key, None)
        self._waiting.pop(key, None)
        self._export()
        self._enqueue_waiting()

    def reset(self, jobs: Iterable[Json]) -> None:
        """Start again from a list of all prep Jobs."""
        found: dict[NamespacedName, set[str]] = {}
        for job in jobs:
            if not is_finished(job):
                meta = job["metadata"]
                found.setdefault(NamespacedName(meta["namespace"], meta["labels"][naming.MODEL]), set()).add(
                    meta["name"]
                )
        self._running = {key: frozenset(jobs) for key, jobs in found.items()}
        self._export()
        self._enqueue_waiting()

    def _enqueue_waiting(self) -> None:
        free = self._limit - len(self._running.keys() | self._reserved)
        for key in list(self._waiting)[: max(0, free)]:
            del self._waiting[key]
            self._enqueue(key)

    def _export(self) -> None:
        metrics.PREPS.labels("running").set(len(self._running.keys() | self._reserved))
        metrics.PREPS.labels("queued").set(len(self._waiting))


def is_finished(job: Json) -> bool:
    """Return whether a Job will do nothing more."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions)
