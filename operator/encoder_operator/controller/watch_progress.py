"""What the watches have brought and what looks have read: which event is news, and which watch has gone silent.

Versions of objects are numbers that grow with every write to the cluster. An event that is not newer than what a look at its
model has read tells nothing new: after a start, or after a write of our own, most are not. And a watch that brings nothing looks
just like a quiet cluster; but when a look has read an object that is newer than everything that the watch of its kind has
brought, and that watch stays silent, then it is dead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

import structlog

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError
from encoder_operator.controller.prep_slots import UNFINISHED_PREP_JOBS, PrepSlots
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json

_LOG = structlog.get_logger()
_GRACE_SECONDS = 30.0
# models of one group are read together
_RESYNC_BATCH = 16
WATCHED_KINDS = (naming.KIND, "Pod", "Service", "Job", "Deployment")


class WatchProgress:
    """How far the watches have come, and how far the looks."""

    def __init__(self, *, grace: float = _GRACE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace = grace
        self._clock = clock
        self._read: dict[NamespacedName, tuple[int, ...]] = {}
        # events that came while a look was under way, which may read them or not
        self._heard: dict[NamespacedName, dict[str, int]] = {}
        # by kind: the newest version that the watch has brought, and when it brought anything
        self._brought: dict[str, tuple[int, float]] = {}
        # by kind: the newest version that a look has read, and since when the watch should have brought it
        self._expected: dict[str, tuple[int, float]] = {}

    def record_event(self, key: NamespacedName, kind: str, version: str) -> bool:
        """Note what a watch has brought; return whether it is news."""
        number = _parse_version(version)
        before = self._brought.get(kind, (0, 0.0))[0]
        self._brought[kind] = (max(before, number), self._clock())
        read = self._read.get(key)
        if read is not None and number and number <= read[WATCHED_KINDS.index(kind)]:
            return False
        heard = self._heard.setdefault(key, {})
        heard[kind] = max(heard.get(kind, 0), number)
        return True

    def has_unread_events(self, key: NamespacedName) -> bool:
        """Return whether anything was brought that no look has read."""
        return key in self._heard

    def record_read(self, key: NamespacedName, versions: Mapping[str, str]) -> None:
        """Note which version of the cluster a look has read, for each kind."""
        self._read[key] = tuple(_parse_version(versions.get(kind, "")) for kind in WATCHED_KINDS)
        heard = self._heard.get(key)
        if heard is not None:
            left = {kind: at for kind, at in heard.items() if at > self._read[key][WATCHED_KINDS.index(kind)]}
            if left:
                self._heard[key] = left
            else:
                del self._heard[key]

    def record_write(self, key: NamespacedName, kind: str, version: str) -> None:
        """Note that a write of our own, to an object that was as we had read it, has made this version."""
        read = self._read.get(key)
        if read is not None and _parse_version(version):
            at = WATCHED_KINDS.index(kind)
            self._read[key] = (*read[:at], max(read[at], _parse_version(version)), *read[at + 1 :])

    def forget(self, key: NamespacedName) -> None:
        """Note that a look did not end well, or that the model is gone: everything about it is news again."""
        self._read.pop(key, None)
        self._heard.pop(key, None)

    def expect(self, kind: str, objects: Iterable[Json]) -> None:
        """Note the metadata of objects that were read: the watch of their kind brings them too."""
        newest = max((_parse_version(meta["resourceVersion"]) for meta in objects), default=0)
        if newest > max(self._brought.get(kind, (0, 0.0))[0], self._expected.get(kind, (0, 0.0))[0]):
            behind = self._expected.get(kind, (0, 0.0))[0] > self._brought.get(kind, (0, 0.0))[0]
            since = self._expected[kind][1] if behind else self._clock()
            self._expected[kind] = (newest, since)

    @property
    def models(self) -> frozenset[NamespacedName]:
        """Return the models that looks have read and have not found gone."""
        return frozenset(self._read)

    @property
    def behind(self) -> tuple[str, ...]:
        """Return the kinds whose watch is silent though there is something."""
        now = self._clock()
        found = []
        for kind, (version, since) in self._expected.items():
            brought, at = self._brought.get(kind, (0, 0.0))
            # as long as it brings anything it may come to it: only silence counts
            if brought < version and now - max(since, at) > self._grace:
                found.append(kind)
        return tuple(found)


async def resync(
    client: Client,
    queue: WorkQueue,
    watch_progress: WatchProgress,
    prep_slots: PrepSlots,
    *,
    period: float,
    namespaces: Iterable[str],
) -> None:
    """Wake every EncoderModel once a period, group by group, until cancelled; those too that are gone without an event."""
    known: set[str] = set()
    while True:
        await asyncio.sleep(period)
        behind = set(watch_progress.behind)
        if behind - known:
            _LOG.error("a watch is silent", kinds=sorted(behind))
        known = behind
        try:
            found = [meta for where in namespaces for meta in await client.list_metadata(naming.KIND, where)]
            jobs = [job for where in namespaces for job in await client.list("Job", where, *UNFINISHED_PREP_JOBS)]
        except ApiServerError as error:
            _LOG.warning("resync failed", error=str(error))
            continue
        except Exception:
            # the last net may not end by a mistake about one answer
            _LOG.exception("resync failed by a mistake in the operator")
            continue
        watch_progress.expect(naming.KIND, found)
        prep_slots.reset(jobs)
        keys = [NamespacedName(meta["namespace"], meta["name"]) for meta in found]
        # a watch that begins again tells nothing of what was deleted meanwhile
        keys += watch_progress.models.difference(keys)
        groups = max(1, -(-len(keys) // _RESYNC_BATCH))
        for i, key in enumerate(keys):
            queue.enqueue(key, after=period / 2 * (i // _RESYNC_BATCH) / groups)


def _parse_version(version: str) -> int:
    return int(version) if version.isdigit() else 0
