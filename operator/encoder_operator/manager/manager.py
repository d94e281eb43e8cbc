"""Starts the parts of the operator and ends them together."""

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
from encoder_operator.controller.prep_slots import UNFINISHED_PREP_JOBS, PrepSlots
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.controller.watch_progress import WatchProgress, resync
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.manager import health, leader_election
from encoder_operator.manager.leader_election import LeaderElector
from encoder_operator.manager.settings import Settings
from encoder_operator.metrics import metrics
from encoder_plugins import catalog

_LOG = structlog.get_logger()
_RETRY_SECONDS = 2.0
# looks that are under way when it is time to end may finish their write
_SHUTDOWN_GRACE_SECONDS = 1.0
# what hangs may not take longer: the next leader waits, and at ten seconds the kubelet kills without a word
_SHUTDOWN_TIMEOUT_SECONDS = 4.5
_GC_THRESHOLDS = 5000, 10, 10


class _StopEvent(asyncio.Event):
    """That it is time to end. Whoever says so also starts the time after which the process is ended wherever it hangs."""

    def set(self) -> None:
        if not self.is_set():
            # not by this loop, which may be what hangs; it says where
            faulthandler.dump_traceback_later(_SHUTDOWN_TIMEOUT_SECONDS, exit=True)
        super().set()


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT, or until the lease is lost.

    Returns:
        The exit code: 0 if it was told to end, 1 if another operator is at work now, or if a watch can't go on.
    """
    # an answer is thousands of objects without a circle among them: to look for one every 700 took a sixth of a start
    gc.set_threshold(*_GC_THRESHOLDS)
    metrics.initialize(catalog.plugins())
    leadership = Leadership()
    client = Client(
        leadership=leadership,
        crash_after_write=settings.crash_after_write,
        crash_before_write=settings.crash_before_write,
    )
    watch_progress, prep_slots = WatchProgress(), PrepSlots(settings.max_preps)
    ready, stop = asyncio.Event(), _StopEvent()
    _stop_on_signals(stop)
    try:
        async with health.serve_health(settings.port, watch_progress, ready.is_set) as port:
            _LOG.info("start", port=port)
            async with _hold_lease(settings, client, leadership, ready, stop) as lost:
                failed = not stop.is_set() and not await _run_controller(
                    settings, client, watch_progress, prep_slots, ready, stop
                )
                return 1 if failed or lost.is_set() else 0
    finally:
        await client.close()
        _LOG.info("end")


def _stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


@asynccontextmanager
async def _hold_lease(
    settings: Settings, client: Client, leadership: Leadership, ready: asyncio.Event, stop: asyncio.Event
) -> AsyncIterator[asyncio.Event]:
    """Hold the lease while the body runs; yields what is set when it is lost, which also sets ``stop``."""
    lost = asyncio.Event()
    if not settings.lease:
        metrics.LEADER.set(1)
        yield lost
        return
    held = LeaderElector(
        client,
        leadership,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=settings.identity or leader_election.identity(),
        seconds=settings.lease_seconds,
    )
    # one that waits is ready to take over, and that is all that is asked of it
    ready.set()
    if not await _unless_stopped(stop, held.acquire()):
        yield lost
        return

    async def keep() -> None:
        await held.renew_until_lost()
        lost.set()
        stop.set()

    keeping = asyncio.create_task(keep(), name="lease")
    try:
        yield lost
    finally:
        await _cancel(keeping)
        await held.release()


async def _run_controller(
    settings: Settings,
    client: Client,
    watch_progress: WatchProgress,
    prep_slots: PrepSlots,
    ready: asyncio.Event,
    stop: asyncio.Event,
) -> bool:
    """Watch and look until told to stop; return False if a watch has ended by itself."""
    namespaces = settings.namespaces or ["*"]
    if not await _unless_stopped(stop, _wait_for_crd(client, prep_slots, namespaces)):
        return True
    reconciler = Reconciler(client, settings, watch_progress=watch_progress, prep_slots=prep_slots)
    queue = WorkQueue(
        lambda key: reconciler.reconcile(*key), concurrency=settings.concurrency, news=watch_progress.has_unread_events
    )
    prep_slots.on_free(queue.enqueue)
    again = resync(client, queue, watch_progress, prep_slots, period=settings.resync_seconds, namespaces=namespaces)
    resyncing = asyncio.create_task(again, name="resync")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    mine = asyncio.all_tasks()
    try:
        tasks = await kopf.spawn_tasks(
            registry=watches.kopf_registry(queue, watch_progress),
            settings=watches.kopf_settings(),
            memories=watches.NullMemories(),
            clusterwide=not settings.namespaced,
            namespaces=settings.namespaces,
            ready_flag=ready,
        )
        # Kopf has put handlers of its own in their place
        _stop_on_signals(stop)
        running = asyncio.create_task(kopf.run_tasks(tasks, ignored=mine), name="kopf")
        await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
        failed = [error for task in tasks if (error := _task_error(task)) is not None]
        if failed:
            # nothing is lost by another life, which begins by reading everything; a watch that nobody sees missing loses much
            _LOG.error("the watches can't go on, so the operator is to be started again", error=repr(failed[0]))
            stop.set()
            # what would end the other watches is what has failed; ended later, with all that they wait for, they begin again
            await _cancel(*(task for task in asyncio.all_tasks() - mine if task.get_name().startswith("watcher ")))
        await queue.close(_SHUTDOWN_GRACE_SECONDS)
        # told to stop Kopf would wait for whatever else this process does; cancelled it ends at once
        await _cancel(running)
        return not failed
    finally:
        await _cancel(resyncing)
        await _cancel(stopping)
        await queue.close()


def _task_error(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _wait_for_crd(client: Client, prep_slots: PrepSlots, namespaces: list[str]) -> None:
    """Wait until there can be EncoderModels, and count the prep Jobs that run already, before any other may be started."""
    told = False
    while True:
        try:
            # Kopf looks once which resources there are, and would never watch one that comes later
            if await client.has_resource(naming.GROUP, naming.VERSION, naming.PLURAL):
                prep_slots.reset(
                    [job for where in namespaces for job in await client.list("Job", where, *UNFINISHED_PREP_JOBS)]
                )
                return
            if not told:
                _LOG.error("the API server has no EncoderModels: is the CustomResourceDefinition installed?")
            told = True
        except ApiServerError as error:
            _LOG.warning("the start waits for the API server", error=str(error))
        await asyncio.sleep(_RETRY_SECONDS)


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work; return False if told to stop before it was done."""
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
