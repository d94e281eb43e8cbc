"""Leader election: acquire, renew and release a Lease.

Clocks of different machines are never compared. The holder counts from before it sent its last renewal, and the others
count from when they first saw it, so the holder stops first even if the machines' clocks differ. The holder stops
writing after two thirds of the Lease's duration, and another operator may take over after the full duration.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from datetime import UTC, datetime
from typing import Protocol

import structlog

from encoder_operator.client.errors import ApiServerError, Conflict, RequestRejected
from encoder_operator.client.leadership import Leadership
from encoder_operator.metrics import metrics
from encoder_operator.revisions.hashing import Json

_LOG = structlog.get_logger()
# a failed release only delays the next leader by the Lease's duration
_RELEASE_SECONDS = 1.0


class LeaseClient(Protocol):
    """The requests that leader election needs."""

    async def get(self, kind: str, namespace: str | None, name: str) -> Json | None:
        """Return an object, or None if it does not exist."""

    async def put_lease(self, lease: Json) -> Json:
        """Create a Lease, or replace exactly the version that was read."""


class LeaderElector:
    """Acquires and renews one Lease."""

    def __init__(
        self, client: LeaseClient, leadership: Leadership, *, namespace: str, name: str, identity: str, seconds: float
    ) -> None:
        self._client = client
        self._leadership = leadership
        self._namespace, self._name = namespace, name
        self._identity = identity
        self._seconds = seconds
        self._held: Json | None = None
        self._seen: tuple[str, float] = ("", 0.0)
        leadership.grant(-math.inf)

    async def acquire(self) -> None:
        """Wait until this operator holds the Lease."""
        logged_holder = ""
        while True:
            try:
                holder = await self._try_acquire()
            except Conflict:
                # another operator was faster; read again to learn which one
                continue
            except ApiServerError as error:
                holder = None
                _LOG.warning("cannot acquire the lease", error=str(error))
            if holder == self._identity:
                metrics.LEADER.set(1)
                _LOG.info("acquired the lease", identity=self._identity)
                return
            if holder and holder != logged_holder:
                logged_holder = holder
                _LOG.info("standing by", holder=holder)
            await asyncio.sleep(self._seconds / 15)

    async def renew_until_lost(self) -> None:
        """Renew the Lease until it is lost."""
        while self._leadership.remaining() > 0:
            await asyncio.sleep(min(self._seconds / 5, max(0.0, self._leadership.remaining())))
            if self._leadership.remaining() <= 0 or not await self._renew():
                break
        self._leadership.grant(-math.inf)
        self._held = None
        metrics.LEADER.set(0)
        _LOG.error("lost the lease", identity=self._identity)

    async def release(self) -> None:
        """Release the Lease so that another operator can acquire it immediately."""
        held, self._held = self._held, None
        self._leadership.grant(-math.inf)
        metrics.LEADER.set(0)
        if held is None:
            return
        spec = {field: value for field, value in held["spec"].items() if field != "holderIdentity"}
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._client.put_lease({**held, "spec": spec})
        except (ApiServerError, TimeoutError) as error:
            _LOG.warning("cannot release the lease", error=str(error))

    async def _try_acquire(self) -> str:
        """Take the Lease if it is free, and return its holder."""
        live = await self._client.get("Lease", self._namespace, self._name)
        spec = (live or {}).get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        now = self._leadership.now()
        # the Lease's own timestamps come from another machine's clock
        version = live["metadata"]["resourceVersion"] if live else ""
        if version != self._seen[0]:
            self._seen = (version, now)
        age = now - self._seen[1]
        if holder and holder != self._identity and age < spec.get("leaseDurationSeconds", self._seconds):
            return str(holder)
        transitions = spec.get("leaseTransitions", 0) + (1 if holder != self._identity else 0)
        await self._put(live, {"acquireTime": _micro_time(), "leaseTransitions": transitions})
        return self._identity

    async def _renew(self) -> bool:
        """Renew the Lease, retrying while writes are still allowed. Return whether this operator still holds it."""
        while self._leadership.remaining() > 0:
            try:
                async with asyncio.timeout(min(self._leadership.remaining(), self._seconds / 3)):
                    await self._put(self._held, {})
                return True
            except Conflict:
                live = await self._get_lease()
                if live is not None and live["spec"].get("holderIdentity") != self._identity:
                    break
                self._held = live or self._held
            except RequestRejected as error:
                _LOG.warning("the lease cannot be renewed", error=str(error))
            except (ApiServerError, TimeoutError) as error:
                _LOG.warning("lease renewal failed; retrying", error=str(error))
            await asyncio.sleep(self._seconds / 15)
        return False

    async def _get_lease(self) -> Json | None:
        try:
            return await self._client.get("Lease", self._namespace, self._name)
        except ApiServerError:
            return None

    async def _put(self, live: Json | None, changes: Json) -> None:
        started = self._leadership.now()
        own = {"holderIdentity": self._identity, "leaseDurationSeconds": math.ceil(self._seconds)}
        spec = {**((live or {}).get("spec") or {}), **own, "renewTime": _micro_time(), **changes}
        metadata = live["metadata"] if live else {"name": self._name, "namespace": self._namespace}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        self._held = await self._client.put_lease(lease)
        self._leadership.grant(started + self._seconds * 2 / 3)


def identity() -> str:
    """Return a name that is unique among running operators.

    In a pod this is the pod's name: a restarted container is the same operator, because its previous process has ended.
    """
    host = socket.gethostname()
    return host if "KUBERNETES_SERVICE_HOST" in os.environ else f"{host}-{os.getpid()}"


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
