"""Starts the parts of the operator and ends them together."""

from __future__ import annotations

import asyncio
import contextlib

import kopf
import structlog

from encoder_operator import handlers, probes, watching
from encoder_operator.cluster import Cluster
from encoder_operator.reconcile import Reconciler
from encoder_operator.settings import Settings
from encoder_operator.wakeups import WakeUps
from encoder_operator.watching import Watchdog

_LOG = structlog.get_logger()


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT, which Kopf handles."""
    cluster = Cluster(crash_after_write=settings.crash_after_write)
    reconciler = Reconciler(cluster, settings)
    wakeups = WakeUps(lambda key: reconciler.reconcile(*key), concurrency=settings.concurrency)
    watchdog = Watchdog()
    ready = asyncio.Event()
    async with probes.serving(settings.port, watchdog, ready.is_set) as port:
        _LOG.info("start", port=port)
        resync = asyncio.create_task(
            watching.resync(cluster, wakeups, watchdog, settings.resync_seconds), name="resync"
        )
        try:
            await kopf.operator(
                registry=handlers.registry(wakeups, watchdog),
                settings=handlers.settings(),
                clusterwide=True,
                ready_flag=ready,
            )
        finally:
            resync.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await resync
            await wakeups.close()
            await cluster.close()
            _LOG.info("end")
