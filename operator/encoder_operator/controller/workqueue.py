"""The queue: one look per EncoderModel at a time, wake-ups that come together are one, failures wait longer each time."""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from encoder_operator.client.errors import Conflict, NotLeader, OperatorError, Unavailable
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName

_LOG = structlog.get_logger()

# events of one change come in bursts
_DEBOUNCE_SECONDS = 0.05
_INITIAL_BACKOFF = 0.5
_MAX_BACKOFF = 300.0
# what is out of reach or busy comes back, and then everybody waits for it
_MAX_UNAVAILABLE_BACKOFF = 30.0
# a model that changes at every look is looked at less often
_MAX_FAST_CONFLICT_RETRIES = 5


Reconcile = Callable[[NamespacedName], Awaitable[float | None]]


@dataclass(slots=True)
class _Entry:
    timer: asyncio.TimerHandle | None = None
    due: float = 0.0
    running: bool = False
    started: bool = False
    requeue: bool = False
    failures: int = 0


class WorkQueue:
    """Runs ``look`` for every key that was woken.

    Args:
        look: looks at one key.
        concurrency: how many looks run at once.
        news: asked after a look during which its key was woken: whether that was about something the look has not seen.
    """

    def __init__(
        self, look: Reconcile, *, concurrency: int, news: Callable[[NamespacedName], bool] = lambda key: True
    ) -> None:
        self._reconcile = look
        self._has_news = news
        self._slots = asyncio.Semaphore(concurrency)
        self._entries: dict[NamespacedName, _Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def enqueue(self, key: NamespacedName, after: float = _DEBOUNCE_SECONDS) -> None:
        """Look at ``key`` soon, or ``after`` seconds from now if nothing is due earlier."""
        if self._closed:
            return
        entry = self._entries.setdefault(key, _Entry())
        if entry.running and after <= _DEBOUNCE_SECONDS:
            # what happened during a look may have been missed by it; one that still waits for its turn sees everything
            entry.requeue = entry.started
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + after
        if entry.timer is not None:
            if entry.due <= due:
                return
            entry.timer.cancel()
        entry.due = due
        # whoever wakes may have much in its context, an event of Kopf's for instance: a timer, and the look, would keep it
        entry.timer = loop.call_at(due, self._start, key, context=contextvars.Context())

    async def close(self, grace: float = 0.0) -> None:
        """Start nothing more, and end what still runs after some seconds."""
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
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.timer = None
        if entry.running:
            entry.requeue = True
            return
        entry.running = True
        metrics.QUEUED.inc()
        task = asyncio.get_running_loop().create_task(self._run(key, entry), name=f"look {key.namespace}/{key.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        again, entry.requeue = entry.requeue, False
        if again and self._has_news(key):
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
                # whoever holds the lease looks
                after = None
                metrics.RECONCILES.labels(type(error).__name__).inc()
                _LOG.info("look given up", error=str(error))
            except OperatorError as error:
                entry.failures += 1
                after = _backoff(entry.failures, error)
                metrics.RECONCILES.labels(type(error).__name__).inc()
                # that somebody else writes too is how things are, unless it goes on
                expected = isinstance(error, Conflict) and entry.failures <= _MAX_FAST_CONFLICT_RETRIES
                say = _LOG.debug if expected else _LOG.warning
                say("look failed", error=str(error), retry_in=round(after, 1))
            except Exception:
                # the boundary of one key: a mistake about one model must not stop the others
                entry.failures += 1
                after = _backoff(entry.failures, None)
                metrics.RECONCILES.labels("Bug").inc()
                _LOG.exception("look failed by a mistake in the operator", retry_in=round(after, 1))
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
    asked = error.retry_after if isinstance(error, Unavailable) and error.retry_after else 0.0
    return max(delay, asked)
