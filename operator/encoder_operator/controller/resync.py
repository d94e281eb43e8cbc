"""What is read again from time to time, because watches do not report everything.

A watch does not report what was deleted before it began, or before it began again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.controller.namespaces import Namespaces
from encoder_operator.controller.prep_slots import UNFINISHED_PREP_JOBS, PrepSlots
from encoder_operator.controller.watch_progress import WatchProgress
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json

_LOG = structlog.get_logger()
# models of one batch are read together
_BATCH = 16


async def unfinished_prep_jobs(client: Client, namespaces: Namespaces) -> list[Json]:
    """Return the prep Jobs of the served namespaces that may hold a slot.

    Raises:
        ApiServerError: The API server did not answer, or rejects the request.
    """
    lists = await namespaces.read(lambda name: client.list("Job", name, *UNFINISHED_PREP_JOBS))
    return [job for jobs in lists for job in jobs if namespaces.serves(job["metadata"]["namespace"])]


async def resync(
    client: Client, queue: WorkQueue, watch_progress: WatchProgress, *, period: float, namespaces: Namespaces
) -> None:
    """Enqueue every EncoderModel once per period, in batches, including deleted ones whose event was missed. Runs until cancelled."""

    async def read_all() -> None:
        lists = await namespaces.read(lambda name: client.list_metadata(naming.KIND, name))
        found = [meta for models in lists for meta in models if namespaces.serves(meta["namespace"])]
        keys = [NamespacedName(meta["namespace"], meta["name"]) for meta in found]
        missing = watch_progress.models.difference(keys)
        keys += [key for key in missing if key.namespace not in namespaces.unreadable]
        groups = max(1, -(-len(keys) // _BATCH))
        for i, key in enumerate(keys):
            queue.enqueue(key, after=period / 2 * (i // _BATCH) / groups)

    await _repeat("resync", read_all, period)


async def recount(client: Client, prep_slots: PrepSlots, *, period: float, namespaces: Namespaces) -> None:
    """Count the prep Jobs once per period while any is known: one that is gone would keep models waiting. Runs until cancelled."""

    async def count() -> None:
        if prep_slots.begin_count():
            prep_slots.reset(await unfinished_prep_jobs(client, namespaces), namespaces.unreadable)

    await _repeat("count of prep Jobs", count, period)


async def _repeat(what: str, work: Callable[[], Awaitable[None]], period: float) -> None:
    while True:
        await asyncio.sleep(period)
        try:
            await work()
        except ApiServerError as error:
            _LOG.warning(f"{what} failed", error=str(error))
        except Exception:
            # nothing else notices what the watches missed, so one malformed response must not end this
            _LOG.exception(f"unexpected error during {what}")
