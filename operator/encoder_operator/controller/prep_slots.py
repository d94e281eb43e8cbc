"""Slots for prep Jobs: a limit on the number that run at the same time, a limit per namespace, and a queue for the rest.

The API server is the source of truth about Jobs; this class counts them without a request per decision. The decision to
start a Job and the reservation of its slot happen without an await in between, so two reconciles never take the same
slot.

A Job holds a slot while its pod runs or is about to. A Job whose pod no node can run, or whose pod was rejected, or that
a queue keeps suspended, holds none, so that it does not keep the models of other namespaces waiting; it still counts towards the limit of its own
namespace. When such a pod is scheduled after all, more Jobs than the limit may run for a while. Free slots go to the
namespaces in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import datetime

from encoder_operator import naming
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json
from encoder_operator.state import ownership
from encoder_operator.state.observed import FIRST_POD_SECONDS, parse_pod, parse_time
from encoder_operator.status.messages import plural

# label and field selectors of the Jobs that may hold a slot; reading the succeeded Jobs too, one per model, would use
# more memory than everything else in the operator
UNFINISHED_PREP_JOBS = {naming.COMPONENT: "prep"}, {"status.successful": "0"}
_ENDED = ("Succeeded", "Failed")
# namespaces whose last turn is remembered; one that is forgotten had its turn before all others
_MAX_TURNS = 1000


class PrepSlots:
    """Slots for prep Jobs, by EncoderModel.

    Args:
        limit: Maximum number of slots in use.
        per_namespace: Maximum number of models of one namespace that have an unfinished prep Job; None for no maximum.
    """

    def __init__(self, limit: int, per_namespace: int | None = None) -> None:
        self._limit = limit
        self._per_namespace = limit if per_namespace is None else per_namespace
        # names of the unfinished Jobs that hold a slot, and of those that hold none
        self._running: dict[NamespacedName, frozenset[str]] = {}
        self._pending: dict[NamespacedName, frozenset[str]] = {}
        # names of those that only a sidecar keeps from finishing
        self._ended: dict[NamespacedName, frozenset[str]] = {}
        self._reserved: set[NamespacedName] = set()
        # by namespace, in order of arrival
        self._waiting: dict[str, dict[NamespacedName, None]] = {}
        # number of the last slot that each namespace was given, in ascending order
        self._last_turn: dict[str, int] = {}
        # models whose Jobs were set while all Jobs are listed: the list may be older
        self._newer: set[NamespacedName] | None = None
        self._enqueue: Callable[[NamespacedName], None] = lambda key: None

    def on_free(self, enqueue: Callable[[NamespacedName], None]) -> None:
        """Set the function that enqueues a model when a slot becomes free for it."""
        self._enqueue = enqueue

    def has_job(self, key: NamespacedName) -> bool:
        """Return whether the model has an unfinished prep Job or a reserved slot, as far as is known."""
        return key in self._with_job

    def wait_reason(self, key: NamespacedName) -> str:
        """Return what a model must wait for before its prep Job may start, or an empty string if it may start now."""
        if self.has_job(key) or key in self._next(key):
            return ""
        if len(self._in_use) >= self._limit:
            return f"Waiting for one of {plural(len(self._in_use), 'preparation')} of other EncoderModels to finish"
        here = self._in_namespace()[key.namespace]
        if here >= self._per_namespace:
            found = plural(here, "unfinished preparation")
            return f"Waiting for one of {found} in namespace {key.namespace} to finish; the limit per namespace is {self._per_namespace}"
        return "Waiting for the preparations of EncoderModels that were queued earlier"

    def may_start(self, key: NamespacedName) -> bool:
        """Return whether the model waits for a slot and one is free for it."""
        return key in self._waiting.get(key.namespace, {}) and not self.wait_reason(key)

    def reserve(self, key: NamespacedName) -> None:
        """Reserve a slot for a Job that is about to be created. The other namespaces have the next turns."""
        self._reserved.add(key)
        turn = next(reversed(self._last_turn.values()), 0) + 1
        self._last_turn.pop(key.namespace, None)
        self._last_turn[key.namespace] = turn
        if len(self._last_turn) > _MAX_TURNS:
            del self._last_turn[next(iter(self._last_turn))]
        self.leave(key)
        self._export()

    def wait(self, key: NamespacedName) -> None:
        """Add a model to the queue; one that is in it already keeps its position."""
        self._waiting.setdefault(key.namespace, {}).setdefault(key)
        self._export()

    def leave(self, key: NamespacedName) -> None:
        """Remove a model from the queue, because it needs no slot or cannot be reconciled."""
        queue = self._waiting.get(key.namespace, {})
        if key not in queue:
            return
        del queue[key]
        if not queue:
            del self._waiting[key.namespace]
        self._export()
        self._enqueue_next()

    def set_jobs(
        self, key: NamespacedName, running: Iterable[str], pending: Iterable[str] = (), ended: Iterable[str] = ()
    ) -> None:
        """Set the unfinished Jobs of a model as the API server reports them.

        Args:
            key: The model.
            running: Names of the Jobs that hold a slot; empty if there are none or the model is gone.
            pending: Names of the Jobs that hold none.
            ended: Names of the Jobs that have a result and count for nothing.
        """
        self._reserved.discard(key)
        if self._newer is not None:
            self._newer.add(key)
        for jobs, found in ((self._running, running), (self._pending, pending), (self._ended, ended)):
            if names := frozenset(found):
                jobs[key] = names
            else:
                jobs.pop(key, None)
        self._export()
        self._enqueue_next()

    def begin_count(self) -> bool:
        """Note that the Jobs are about to be listed for `reset`; return whether any is known, so that there is something to count."""
        self._newer = set()
        return bool(self._running or self._pending)

    def reset(self, jobs: Iterable[Json], unread: Collection[str] = ()) -> None:
        """Reset all slots from a list of prep Jobs, except those of models whose Jobs were set since the count began.

        In the namespaces that were not read, everything stays as it is. A Job is taken to hold its slot unless a reconcile has found before that
        it does not.
        """
        newer, self._newer = self._newer or (), None

        def stays(key: NamespacedName) -> bool:
            return key.namespace in unread or key in newer

        unfinished: dict[NamespacedName, set[str]] = {}
        for job in jobs:
            meta = job["metadata"]
            key = NamespacedName(meta["namespace"], meta["labels"][naming.MODEL])
            if not is_finished(job) and not stays(key):
                unfinished.setdefault(key, set()).add(meta["name"])
        running = {key: names for key, names in self._running.items() if stays(key)}
        pending = {key: names for key, names in self._pending.items() if stays(key)}
        self._ended = {key: names for key, names in self._ended.items() if key in unfinished or stays(key)}
        for key, listed in unfinished.items():
            names = listed - self._ended.get(key, frozenset())
            if still := names & self._pending.get(key, frozenset()):
                pending[key] = frozenset(still)
            if others := names - self._pending.get(key, frozenset()):
                running[key] = frozenset(others)
        self._running, self._pending = running, pending
        self._export()
        self._enqueue_next()

    def forget(self, namespace: str) -> None:
        """Forget the Jobs and the queue of a namespace that is not served any more; its slots are free."""
        for jobs in (self._running, self._pending, self._ended):
            for key in [key for key in jobs if key.namespace == namespace]:
                del jobs[key]
        self._reserved = {key for key in self._reserved if key.namespace != namespace}
        self._waiting.pop(namespace, None)
        self._export()
        self._enqueue_next()

    @property
    def _in_use(self) -> set[NamespacedName]:
        return self._running.keys() | self._reserved

    @property
    def _with_job(self) -> set[NamespacedName]:
        return self._in_use | self._pending.keys()

    def _in_namespace(self) -> Counter[str]:
        return Counter(key.namespace for key in self._with_job)

    def _next(self, also: NamespacedName | None = None) -> list[NamespacedName]:
        """Return the models that may start now, in order; `also` is taken to wait behind the others."""
        free = self._limit - len(self._in_use)
        if free <= 0:
            return []
        queues = {namespace: list(queue) for namespace, queue in self._waiting.items()}
        if also is not None and also not in queues.setdefault(also.namespace, []):
            queues[also.namespace].append(also)
        order = sorted(queues, key=lambda namespace: self._last_turn.get(namespace, 0))
        used, found = self._in_namespace(), list[NamespacedName]()
        turn = True
        while turn:
            turn = False
            for namespace in order:
                queue = queues[namespace]
                if queue and used[namespace] < self._per_namespace and len(found) < free:
                    found.append(queue.pop(0))
                    used[namespace] += 1
                    turn = True
        return found

    def _enqueue_next(self) -> None:
        for key in self._next():
            self._enqueue(key)

    def _export(self) -> None:
        metrics.PREPS.labels("running").set(len(self._in_use))
        metrics.PREPS.labels("pending").set(len(self._pending.keys() - self._in_use))
        metrics.PREPS.labels("queued").set(sum(len(queue) for queue in self._waiting.values()))


def is_finished(job: Json) -> bool:
    """Return whether a Job has completed or failed."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(entry["type"] in ("Complete", "Failed") and entry["status"] == "True" for entry in conditions)


def has_result(job: Json, pods: Iterable[Json]) -> bool:
    """Return whether a Job's pod has reported an artifact and runs on, because of a sidecar that a webhook has added, and the Job with it.

    A pod without one has ended as well, and its Job is about to.
    """
    own = (parse_pod(pod) for pod in pods if ownership.controlled(pod, "Job", {job["metadata"]["uid"]}))
    return any(pod.alive and pod.terminated is not None and pod.terminated.exit_code == 0 for pod in own)


def holds_slot(job: Json, pods: Iterable[Json], now: datetime) -> bool:
    """Return whether a pod of an unfinished Job runs or is about to.

    Args:
        job: The Job.
        pods: Pods, of this Job and others.
        now: The time by the API server's clock.
    """
    meta = job["metadata"]
    own = [pod for pod in pods if ownership.controlled(pod, "Job", {meta["uid"]})]
    alive = [pod for pod in own if (pod.get("status") or {}).get("phase") not in _ENDED]
    if (job.get("spec") or {}).get("suspend") and not alive:
        # a queue decides when it has a pod
        return False
    if not own:
        # a working Job controller has created the first pod by then, unless the API server rejects it
        created = parse_time(meta.get("creationTimestamp")) or now
        return (now - created).total_seconds() < FIRST_POD_SECONDS
    # after a failed attempt, the Job controller creates the next pod
    return not alive or any(not _is_unscheduled(pod) for pod in alive)


def _is_unscheduled(pod: Json) -> bool:
    """Return whether the scheduler has found no node for a pod, or does not look for one because of a scheduling gate."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(entry["type"] == "PodScheduled" and entry["status"] == "False" for entry in conditions)
