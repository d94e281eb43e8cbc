"""Start and stop the parts of the operator."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import kopf
import structlog

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.client.leadership import Leadership
from encoder_operator.controller import watches
from encoder_operator.controller.namespaces import Namespaces, SelectedNamespaces, served_namespaces
from encoder_operator.controller.prep_slots import PrepSlots
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.controller.resync import recount, resync, unfinished_prep_jobs
from encoder_operator.controller.watch_progress import WatchProgress
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.manager import health, leader_election
from encoder_operator.manager.leader_election import LeaderElector
from encoder_operator.manager.settings import Settings
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName
from encoder_plugins import catalog

_LOG = structlog.get_logger()
_RETRY_SECONDS = 2.0
# a prep Job that no longer exists may keep a model waiting for this long
_RECOUNT_SECONDS = 30.0
# reconciles that run at shutdown may finish their write
_SHUTDOWN_GRACE_SECONDS = 1.0
# longer than this blocks the next leader, and after ten seconds the kubelet kills the pod without a message
_SHUTDOWN_TIMEOUT_SECONDS = 4.5
_GC_THRESHOLDS = 5000, 10, 10


class _StopEvent(asyncio.Event):
    """An event that requests shutdown. Setting it also starts a timer that ends the process even if the event loop hangs."""

    def set(self) -> None:
        if not self.is_set():
            # a thread outside the event loop, because the loop may be what hangs; it prints where
            faulthandler.dump_traceback_later(_SHUTDOWN_TIMEOUT_SECONDS, exit=True)
        super().set()


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT, or until the Lease is lost.

    Returns:
        The exit code: 0 after a requested shutdown, 1 if the Lease was lost or a watch failed.
    """
    # API responses hold thousands of objects without reference cycles; the default threshold of 700 cost a sixth of the
    # start-up time
    gc.set_threshold(*_GC_THRESHOLDS)
    metrics.initialize(catalog.plugins())
    leadership = Leadership()
    client = Client(
        leadership=leadership,
        crash_after_write=settings.crash_after_write,
        crash_before_write=settings.crash_before_write,
    )
    watch_progress, prep_slots = WatchProgress(), PrepSlots(settings.max_preps, settings.namespace_max_preps)
    ready, stop = asyncio.Event(), _StopEvent()
    _stop_on_signals(stop)
    try:
        async with health.serve_health(settings.port, ready.is_set) as port:
            _LOG.info("started", port=port)
            async with _hold_lease(settings, client, leadership, ready, stop) as lost:
                failed = not stop.is_set() and not await _run_controller(
                    settings, client, watch_progress, prep_slots, ready, stop
                )
                return 1 if failed or lost.is_set() else 0
    finally:
        await client.close()
        _LOG.info("stopped")


def _stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


@asynccontextmanager
async def _hold_lease(
    settings: Settings, client: Client, leadership: Leadership, ready: asyncio.Event, stop: asyncio.Event
) -> AsyncIterator[asyncio.Event]:
    """Hold the Lease while the body runs. Yields an event that is set when the Lease is lost; `stop` is set as well."""
    lost = asyncio.Event()
    if not settings.lease:
        metrics.LEADER.set(1)
        yield lost
        return
    elector = LeaderElector(
        client,
        leadership,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=settings.identity or leader_election.identity(),
        seconds=settings.lease_seconds,
    )
    # a standby instance is ready as soon as it can take over
    ready.set()
    if not await _unless_stopped(stop, elector.acquire()):
        yield lost
        return

    async def keep() -> None:
        await elector.renew_until_lost()
        lost.set()
        stop.set()

    renewing = asyncio.create_task(keep(), name="lease")
    try:
        yield lost
    finally:
        await _cancel(renewing)
        await elector.release()


async def _run_controller(
    settings: Settings,
    client: Client,
    watch_progress: WatchProgress,
    prep_slots: PrepSlots,
    ready: asyncio.Event,
    stop: asyncio.Event,
) -> bool:
    """Watch and reconcile until shutdown is requested. Return False if a watch failed."""
    namespaces = served_namespaces(client, settings)
    if not await _unless_stopped(stop, _wait_for_crd(client, prep_slots, namespaces)):
        return True
    reconciler = Reconciler(client, settings, watch_progress=watch_progress, prep_slots=prep_slots)
    queue = WorkQueue(
        lambda key: reconcile_if_served(reconciler, namespaces, key),
        concurrency=settings.concurrency,
        # a slot may have become free for a model since its reconcile was planned
        has_news=lambda key: watch_progress.has_unread_events(key) or prep_slots.may_start(key),
    )
    prep_slots.on_free(queue.enqueue)

    def enqueue_again(key: NamespacedName) -> None:
        # events were dropped since a reconcile that may still run has read the model
        watch_progress.record_event(key, naming.KIND, "")
        queue.enqueue(key)

    if isinstance(namespaces, SelectedNamespaces):
        namespaces.on_change(enqueue_again, reconciler.forget)
    resyncing = resync(client, queue, watch_progress, period=settings.resync_seconds, namespaces=namespaces)
    period = min(_RECOUNT_SECONDS, settings.resync_seconds)
    recounting = recount(client, prep_slots, period=period, namespaces=namespaces)
    periodic = [asyncio.create_task(resyncing, name="resync"), asyncio.create_task(recounting, name="recount")]
    stopping = asyncio.create_task(stop.wait(), name="stop")
    own_tasks = asyncio.all_tasks()
    try:
        tasks = await kopf.spawn_tasks(
            registry=watches.kopf_registry(queue, watch_progress, namespaces),
            settings=watches.kopf_settings(),
            memories=watches.NullMemories(),
            clusterwide=not settings.namespaced,
            namespaces=settings.namespaces,
            ready_flag=ready,
        )
        # Kopf has replaced the signal handlers with its own
        _stop_on_signals(stop)
        running = asyncio.create_task(kopf.run_tasks(tasks, ignored=own_tasks), name="kopf")
        await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
        failed = [error for task in tasks if (error := _task_error(task)) is not None]
        if failed:
            # a restart loses nothing because it begins by reading everything, whereas a missing watch would go
            # unnoticed
            _LOG.error("a watch failed; the operator exits and must be restarted", error=repr(failed[0]))
            stop.set()
            # the failed task would have ended the other watches; cancelled later, together with everything else, they
            # would start again
            await _cancel(*(task for task in asyncio.all_tasks() - own_tasks if task.get_name().startswith("watcher ")))
        await queue.close(_SHUTDOWN_GRACE_SECONDS)
        # Kopf's own shutdown would wait for every task of this process; cancellation ends it immediately
        await _cancel(running)
        return not failed
    finally:
        await _cancel(*periodic)
        await _cancel(stopping)
        await queue.close()


async def reconcile_if_served(reconciler: Reconciler, namespaces: Namespaces, key: NamespacedName) -> float | None:
    """Reconcile a model unless its namespace ceased to be served after the model was enqueued.

    Returns:
        Seconds until the next reconcile if no event arrives before; None to wait for an event.
    """
    if not namespaces.serves(key.namespace):
        return None
    try:
        after = await reconciler.reconcile(*key)
    finally:
        # it may have ceased meanwhile; the reconcile has then recorded what was forgotten already
        if not namespaces.serves(key.namespace):
            reconciler.forget(key.namespace)
    return after if namespaces.serves(key.namespace) else None


def _task_error(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _wait_for_crd(client: Client, prep_slots: PrepSlots, namespaces: Namespaces) -> None:
    """Wait until the API server serves EncoderModels, then read which namespaces are served and count their running prep Jobs."""
    logged = False
    while True:
        try:
            # Kopf discovers resources only once, and would never watch a CustomResourceDefinition that is installed
            # later
            if await client.has_resource(naming.GROUP, naming.VERSION, naming.PLURAL):
                prep_slots.reset(await unfinished_prep_jobs(client, namespaces))
                return
            if not logged:
                _LOG.error("the API server does not serve EncoderModels; is the CustomResourceDefinition installed?")
            logged = True
        except ApiServerError as error:
            _LOG.warning("waiting for the API server", error=str(error))
        await asyncio.sleep(_RETRY_SECONDS)


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Await the coroutine. Return False if shutdown was requested before it finished."""
    doing, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
    done = doing.done()
    await _cancel(stopping)
    await _cancel(doing)
    if done:
        doing.result()
    return done


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)
