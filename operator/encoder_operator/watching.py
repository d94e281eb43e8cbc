"""Looks again at everything now and then, and notices a watch that has gone silent.

A watch that brings nothing looks just like a quiet cluster. So each resync compares the versions that a list shows with those that
the watch has brought: an object whose newer version has not come some time later means that the watch is behind.
"""

from __future__ import annotations

import asyncio
import random

import structlog

from encoder_operator import metrics, names
from encoder_operator.cluster import Cluster
from encoder_operator.errors import ClusterError
from encoder_operator.wakeups import Key, WakeUps

_LOG = structlog.get_logger()
_GRACE_SECONDS = 30.0


class Watchdog:
    """Knows which versions the watch has brought."""

    def __init__(self, *, grace: float = _GRACE_SECONDS) -> None:
        self._grace = grace
        self._versions: dict[Key, str] = {}
        self._behind: tuple[Key, ...] = ()

    @property
    def behind(self) -> tuple[Key, ...]:
        """Return the EncoderModels whose changes the watch has missed."""
        return self._behind

    def seen(self, key: Key, version: str) -> None:
        """Note what the watch has brought."""
        self._versions[key] = version

    def gone(self, key: Key) -> None:
        """Note that an EncoderModel was deleted."""
        self._versions.pop(key, None)

    async def compare(self, listed: dict[Key, str]) -> None:
        """Wait a moment, then note which listed versions the watch should have brought and has not."""
        before = {key: self._versions.get(key) for key in listed}
        await asyncio.sleep(self._grace)
        self._behind = tuple(
            key
            for key, version in listed.items()
            # a newer version than the listed one may have come: only silence counts
            if self._versions.get(key) == before[key] != version
        )
        metrics.BEHIND.set(len(self._behind))
        if self._behind:
            _LOG.error("the watch is behind", models=[f"{key.namespace}/{key.name}" for key in self._behind[:5]])


async def resync(cluster: Cluster, wakeups: WakeUps, watchdog: Watchdog, period: float) -> None:
    """Wake every EncoderModel once a period, spread over it, until cancelled."""
    while True:
        await asyncio.sleep(period)
        try:
            found = await cluster.list(names.KIND, "*", {})
        except ClusterError as error:
            _LOG.warning("resync failed", error=str(error))
            continue
        listed = {
            Key(live["metadata"]["namespace"], live["metadata"]["name"]): live["metadata"]["resourceVersion"]
            for live in found
        }
        for key in listed:
            wakeups.wake(key, after=random.uniform(0.0, period / 2))
        await watchdog.compare(listed)
