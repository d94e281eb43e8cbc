"""Slots for prep Jobs: a limit on the number that run at the same time over all namespaces, and a queue for the rest.

The API server is the source of truth about running Jobs; this class counts them without a request per decision. The
decision to start a Job and the reservation of its slot happen without an await in between, so two reconciles never take
the same slot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from encoder_operator import naming
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json

# label and field selectors of the Jobs that may hold a slot; reading the succeeded Jobs too, one per model, would use
# more memory than everything else in the operator
UNFINISHED_PREP_JOBS = {naming.COMPONENT: "prep"}, {"status.successful": "0"}


class PrepSlots:
    """Slots for prep Jobs, by EncoderModel."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[NamespacedName, frozenset[str]] = {}
        self._reserved: set[NamespacedName] = set()
        # in order of arrival
        self._waiting: dict[NamespacedName, None] = {}
        self._enqueue: Callable[[NamespacedName], None] = lambda key: None

    def on_free(self, enqueue: Callable[[NamespacedName], None]) -> None:
        """Set the function that enqueues a model when a slot becomes free."""
        self._enqueue = enqueue

    def holds_slot(self, key: NamespacedName) -> bool:
        """Return whether the model holds a slot, as far as is known."""
        return key in self._running or key in self._reserved

    def used_by_others(self, key: NamespacedName) -> int:
        """Return the number of slots that other models hold, or 0 if this model holds one itself."""
        if key in self._running:
            return 0
        return len((self._running.keys() | self._reserved) - {key})

    def reserve(self, key: NamespacedName) -> None:
        """Reserve a slot for a Job that is about to be created."""
        self._reserved.add(key)
        self._waiting.pop(key, None)
        self._export()

    def wait(self, key: NamespacedName) -> None:
        """Add a model to the queue."""
        self._waiting.setdefault(key)
        self._export()
        # a slot may have become free after the model was planned
        self._enqueue_waiting()

    def set_jobs(self, key: NamespacedName, unfinished: Iterable[str]) -> None:
        """Set the unfinished Jobs of a model as the API server reports them; empty if there are none or the model is gone."""
        jobs = frozenset(unfinished)
        self._reserved.discard(key)
        if jobs:
            self._running[key] = jobs
        else:
            self._running.pop(key, None)
        self._waiting.pop(key, None)
        self._export()
        self._enqueue_waiting()

    def reset(self, jobs: Iterable[Json], unread: Collection[str] = ()) -> None:
        """Reset all slots from a list of prep Jobs. In the namespaces that were not read, everything stays as it is."""
        found: dict[NamespacedName, set[str]] = {
            key: set(names) for key, names in self._running.items() if key.namespace in unread
        }
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
    """Return whether a Job has completed or failed."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions)
