"""Work queue: one reconcile per EncoderModel at a time, coalesced requests, exponential backoff after failures, and a limited rate.

The rate of each model is limited by a token bucket, because another client that undoes the operator's writes would
otherwise cause reconciles without end.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from encoder_operator.client.errors import Conflict, NotLeader, OperatorError, Unavailable
from encoder_operator.controller.token_bucket import TokenBucket
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName

_LOG = structlog.get_logger()

# events of one change arrive in bursts
_DEBOUNCE_SECONDS = 0.05
_INITIAL_BACKOFF = 0.5
_MAX_BACKOFF = 300.0
# an unreachable or overloaded API server recovers, and then all models are waiting
_MAX_UNAVAILABLE_BACKOFF = 30.0
# a rollout takes about 30 reconciles within a few seconds; one that another client undoes takes one every 2 seconds
_BURST = 60
_TOKEN_SECONDS = 2.0
# buckets of the models that were reconciled last; any other bucket is full again
_MAX_BUCKETS = 10_000
# after this many conflicts in a row, a contended model backs off
_MAX_FAST_CONFLICT_RETRIES = 5


Reconcile = Callable[[NamespacedName], Awaitable[float | None]]


@dataclass(slots=True)
class _Entry:
    timer: asyncio.TimerHandle | None = None
    due: float = 0.0
    running: bool = False
    throttled: bool = False
    started: bool = False
    requeue: bool = False
    failures: int = 0


class WorkQueue:
    """Calls `reconcile` for every key that was enqueued.

    Args:
        reconcile: Reconciles one key.
        concurrency: Maximum number of concurrent reconciles.
        has_news: Called after a reconcile during which the key was enqueued again. Returns whether an event arrived
            that the reconcile has not read.
    """

    def __init__(
        self, reconcile: Reconcile, *, concurrency: int, has_news: Callable[[NamespacedName], bool] = lambda key: True
    ) -> None:
        self._reconcile = reconcile
        self._has_news = has_news
        self._slots = asyncio.Semaphore(concurrency)
        self._entries: dict[NamespacedName, _Entry] = {}
        self._buckets: OrderedDict[NamespacedName, TokenBucket] = OrderedDict()
        # models whose delays were logged
        self._reported: set[NamespacedName] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def enqueue(self, key: NamespacedName, after: float = _DEBOUNCE_SECONDS) -> None:
        """Reconcile `key` soon, or `after` seconds from now if nothing is due earlier."""
        if self._closed:
            return
        entry = self._entries.setdefault(key, _Entry())
        if entry.running and after <= _DEBOUNCE_SECONDS:
            # a running reconcile may have missed the event; one that has not started yet reads it anyway
            entry.requeue = entry.started
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + after
        if entry.timer is not None:
            if entry.due <= due:
                return
            entry.timer.cancel()
        entry.due = due
        # the caller's context may be large, for instance a Kopf event, and the timer would keep it in memory
        entry.timer = loop.call_at(due, self._start, key, context=contextvars.Context())

    async def close(self, grace: float = 0.0) -> None:
        """Stop accepting keys, and cancel running reconciles after a grace period."""
        self._closed = True
        for entry in self._entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
        if self._tasks and grace:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, key: NamespacedName) -> None:
        entry = self._entries[key]
        entry.timer = None
        if entry.running:
            entry.requeue = True
            return
        if self._throttle(key, entry):
            return
        entry.running = True
        metrics.QUEUED.inc()
        task = asyncio.get_running_loop().create_task(
            self._run(key, entry), name=f"reconcile {key.namespace}/{key.name}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _throttle(self, key: NamespacedName, entry: _Entry) -> bool:
        """Take a token, or start the timer again for when there is one. Return whether the model must wait."""
        loop = asyncio.get_running_loop()
        bucket = self._buckets.setdefault(key, TokenBucket(_BURST, _TOKEN_SECONDS))
        self._buckets.move_to_end(key)
        if len(self._buckets) > _MAX_BUCKETS:
            self._reported.discard(self._buckets.popitem(last=False)[0])
        delay = bucket.take(loop.time())
        if delay:
            if not entry.throttled:
                metrics.THROTTLED.inc()
            if key not in self._reported:
                self._reported.add(key)
                _LOG.warning(
                    "reconciles are delayed because the model changes too often; another client may undo changes",
                    namespace=key.namespace,
                    name=key.name,
                )
            entry.due = loop.time() + delay
            entry.timer = loop.call_at(entry.due, self._start, key, context=contextvars.Context())
        elif bucket.tokens >= _BURST / 2:
            self._reported.discard(key)
        entry.throttled = bool(delay)
        return entry.throttled

    async def _run(self, key: NamespacedName, entry: _Entry) -> None:
        try:
            async with self._slots:
                entry.started = True
                metrics.QUEUED.dec()
                after = await self._reconcile_key(key, entry)
        finally:
            if not entry.started:
                metrics.QUEUED.dec()
            entry.running = entry.started = False
        requeue, entry.requeue = entry.requeue, False
        if requeue and self._has_news(key):
            after = min(after or _DEBOUNCE_SECONDS, _DEBOUNCE_SECONDS) if entry.failures == 0 else after
        if after is not None:
            self.enqueue(key, after)
        elif entry.timer is None:
            self._entries.pop(key, None)

    async def _reconcile_key(self, key: NamespacedName, entry: _Entry) -> float | None:
        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(namespace=key.namespace, name=key.name):
            try:
                after = await self._reconcile(key)
            except NotLeader as error:
                # the holder of the Lease reconciles this model
                after = None
                metrics.RECONCILES.labels(type(error).__name__).inc()
                _LOG.info("reconcile stopped", error=str(error))
            except OperatorError as error:
                entry.failures += 1
                after = _backoff(entry.failures, error)
                metrics.RECONCILES.labels(type(error).__name__).inc()
                # occasional conflicts with other writers are normal
                expected = isinstance(error, Conflict) and entry.failures <= _MAX_FAST_CONFLICT_RETRIES
                log = _LOG.debug if expected else _LOG.warning
                log("reconcile failed", error=str(error), retry_in=round(after, 1))
            except Exception:
                # an unexpected error about one model must not stop the others
                entry.failures += 1
                after = _backoff(entry.failures, None)
                metrics.RECONCILES.labels("InternalError").inc()
                _LOG.exception("unexpected error during reconciliation", retry_in=round(after, 1))
            else:
                entry.failures = 0
                metrics.RECONCILES.labels("ok").inc()
        metrics.RECONCILE_SECONDS.observe(time.monotonic() - started)
        return after


def _backoff(failures: int, error: OperatorError | None) -> float:
    if isinstance(error, Conflict) and failures <= _MAX_FAST_CONFLICT_RETRIES:
        return _DEBOUNCE_SECONDS
    most = _MAX_UNAVAILABLE_BACKOFF if isinstance(error, Unavailable) else _MAX_BACKOFF
    longest = min(most, _INITIAL_BACKOFF * 2 ** min(failures - 1, 16))
    delay = random.uniform(longest / 2, longest)
    retry_after = error.retry_after if isinstance(error, Unavailable) and error.retry_after else 0.0
    # a proxy may send a day, in which the model's next change would wait too
    return max(delay, min(retry_after, _MAX_BACKOFF))
