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
from encoder_operator.client.client import Cluster
from encoder_operator.client.errors import ClusterError
from encoder_operator.controller import watch_progress, watches
from encoder_operator.controller.prep_slots import UNFINISHED, Preps
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.controller.watch_progress import Horizon
from encoder_operator.controller.workqueue import WakeUps
from encoder_operator.manager import health, leader_election
from encoder_operator.manager.leader_election import Leadership, Lease
from encoder_operator.manager.settings import Settings
from encoder_operator.metrics import metrics
from encoder_plugins import catalog

_LOG = structlog.get_logger()
_AGAIN_SECONDS = 2.0
# looks that are under way when it is time to end may finish their write
_LAST_LOOKS_SECONDS = 1.0
# what hangs may not take longer: the next leader waits, and at ten seconds the kubelet kills without a word
_END_SECONDS = 4.5
_COLLECT_AFTER = 5000, 10, 10


class _Stop(asyncio.Event):
    """That it is time to end. Whoever says so also starts the time after which the process is ended wherever it hangs."""

    def set(self) -> None:
        if not self.is_set():
            # not by this loop, which may be what hangs; it says where
            faulthandler.dump_traceback_later(_END_SECONDS, exit=True)
        super().set()


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT, or until the lease is lost.

    Returns:
        The exit code: 0 if it was told to end, 1 if another operator is at work now, or if a watch can't go on.
    """
    # an answer is thousands of objects without a circle among them: to look for one every 700 took a sixth of a start
    gc.set_threshold(*_COLLECT_AFTER)
    metrics.begin(catalog.plugins())
    leadership = Leadership()
    cluster = Cluster(
        leadership=leadership,
        crash_after_write=settings.crash_after_write,
        crash_before_write=settings.crash_before_write,
    )
    horizon, preps = Horizon(), Preps(settings.max_preps)
    ready, stop = asyncio.Event(), _Stop()
    _on_signals(stop)
    try:
        async with health.serving(settings.port, horizon, ready.is_set) as port:
            _LOG.info("start", port=port)
            async with _leading(settings, cluster, leadership, ready, stop) as lost:
                failed = not stop.is_set() and not await _work(settings, cluster, horizon, preps, ready, stop)
                return 1 if failed or lost.is_set() else 0
    finally:
        await cluster.close()
        _LOG.info("end")


def _on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


@asynccontextmanager
async def _leading(
    settings: Settings, cluster: Cluster, leadership: Leadership, ready: asyncio.Event, stop: asyncio.Event
) -> AsyncIterator[asyncio.Event]:
    """Hold the lease while the body runs; yields what is set when it is lost, which also sets ``stop``."""
    lost = asyncio.Event()
    if not settings.lease:
        metrics.LEADER.set(1)
        yield lost
        return
    held = Lease(
        cluster,
        leadership,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=settings.identity or leader_election.identity(),
        seconds=settings.lease_seconds,
    )
    # one that waits is ready to take over, and that is all that is asked of it
    ready.set()
    if not await _unless(stop, held.acquire()):
        yield lost
        return

    async def keep() -> None:
        await held.keep()
        lost.set()
        stop.set()

    keeping = asyncio.create_task(keep(), name="lease")
    try:
        yield lost
    finally:
        await _ended(keeping)
        await held.release()


async def _work(
    settings: Settings, cluster: Cluster, horizon: Horizon, preps: Preps, ready: asyncio.Event, stop: asyncio.Event
) -> bool:
    """Watch and look until told to stop; return False if a watch has ended by itself."""
    namespaces = settings.namespaces or ["*"]
    if not await _unless(stop, _prepared(cluster, preps, namespaces)):
        return True
    reconciler = Reconciler(cluster, settings, horizon=horizon, preps=preps)
    wakeups = WakeUps(lambda key: reconciler.reconcile(*key), concurrency=settings.concurrency, news=horizon.news)
    preps.wakes(wakeups.wake)
    again = watch_progress.resync(
        cluster, wakeups, horizon, preps, period=settings.resync_seconds, namespaces=namespaces
    )
    resync = asyncio.create_task(again, name="resync")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    mine = asyncio.all_tasks()
    try:
        tasks = await kopf.spawn_tasks(
            registry=watches.registry(wakeups, horizon),
            settings=watches.settings(),
            memories=watches.NoMemories(),
            clusterwide=not settings.namespaced,
            namespaces=settings.namespaces,
            ready_flag=ready,
        )
        # Kopf has put handlers of its own in their place
        _on_signals(stop)
        running = asyncio.create_task(kopf.run_tasks(tasks, ignored=mine), name="kopf")
        await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
        failed = [error for task in tasks if (error := _error(task)) is not None]
        if failed:
            # nothing is lost by another life, which begins by reading everything; a watch that nobody sees missing loses much
            _LOG.error("the watches can't go on, so the operator is to be started again", error=repr(failed[0]))
            stop.set()
            # what would end the other watches is what has failed; ended later, with all that they wait for, they begin again
            await _ended(*(task for task in asyncio.all_tasks() - mine if task.get_name().startswith("watcher ")))
        await wakeups.close(_LAST_LOOKS_SECONDS)
        # told to stop Kopf would wait for whatever else this process does; cancelled it ends at once
        await _ended(running)
        return not failed
    finally:
        await _ended(resync)
        await _ended(stopping)
        await wakeups.close()


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _prepared(cluster: Cluster, preps: Preps, namespaces: list[str]) -> None:
    """Wait until there can be EncoderModels, and count the prep Jobs that run already, before any other may be started."""
    told = False
    while True:
        try:
            # Kopf looks once which resources there are, and would never watch one that comes later
            if await cluster.serves(naming.GROUP, naming.VERSION, naming.PLURAL):
                preps.seed([job for where in namespaces for job in await cluster.list("Job", where, *UNFINISHED)])
                return
            if not told:
                _LOG.error("the API server has no EncoderModels: is the CustomResourceDefinition installed?")
            told = True
        except ClusterError as error:
            _LOG.warning("the start waits for the API server", error=str(error))
        await asyncio.sleep(_AGAIN_SECONDS)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work; return False if told to stop before it was done."""
    doing, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
    done = doing.done()
    await _ended(stopping)
    await _ended(doing)
    if done:
        doing.result()
    return done


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)
