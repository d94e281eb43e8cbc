"""The namespaces that the operator serves, and which of them it cannot read.

Roles and namespaces can be deleted while the operator runs. What the API server rejects in one namespace must not keep the operator
from serving the others, so lists are read namespace by namespace, and a namespace that cannot be read is reported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import RequestRejected
from encoder_operator.manager.settings import Settings
from encoder_operator.metrics import metrics
from encoder_operator.revisions.hashing import Json, json_digest
from encoder_operator.state.observed import format_time

_LOG = structlog.get_logger()
_T = TypeVar("_T")
_ALL = "*"


class Namespaces:
    """Reads from each served namespace, and reports those that cannot be read.

    Args:
        client: The API server.
        settings: Which namespaces are served, and where Events about them are created.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._names = tuple(settings.namespaces) or (_ALL,)
        self._operator = settings.lease_namespace, settings.lease_name
        self._unreadable: set[str] = set()
        for name in settings.namespaces:
            metrics.NAMESPACE_UNREADABLE.labels(name).set(0)

    @property
    def unreadable(self) -> frozenset[str]:
        """Return the namespaces that could not be read the last time."""
        return frozenset(self._unreadable)

    async def read(self, read: Callable[[str], Awaitable[_T]]) -> list[_T]:
        """Call ``read`` for each namespace and return the results of those that can be read.

        Raises:
            ApiServerError: The API server did not answer, or rejects a request that is not about one namespace.
        """
        found = []
        for name in self._names:
            try:
                result = await read(name)
            except RequestRejected as error:
                if name == _ALL:
                    raise
                await self._set_unreadable(name, str(error))
            else:
                found.append(result)
                await self._set_readable(name)
        return found

    async def _set_unreadable(self, name: str, why: str) -> None:
        if name in self._unreadable:
            return
        self._unreadable.add(name)
        metrics.NAMESPACE_UNREADABLE.labels(name).set(1)
        _LOG.error("a namespace cannot be read", namespace=name, error=why)
        message = f"Namespace {name} cannot be read; other namespaces are served. {why}"
        await self._post_event("NamespaceUnreadable", message, warning=True)

    async def _set_readable(self, name: str) -> None:
        if name not in self._unreadable:
            return
        self._unreadable.discard(name)
        metrics.NAMESPACE_UNREADABLE.labels(name).set(0)
        _LOG.info("a namespace can be read again", namespace=name)
        await self._post_event("NamespaceReadable", f"Namespace {name} can be read again", warning=False)

    async def _post_event(self, reason: str, message: str, *, warning: bool) -> None:
        namespace, deployment = self._operator
        now = format_time(self._client.now)
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{deployment}.{json_digest([now, reason, message])[:16]}", "namespace": namespace},
            # in the namespace itself, the operator could not create it
            "involvedObject": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": deployment,
                "namespace": namespace,
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message[:1024],
            "source": {"component": naming.MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.create_event(event)
