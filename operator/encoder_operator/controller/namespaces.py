"""The namespaces that the operator serves, and which of them it cannot read.

Roles and namespaces can be deleted while the operator runs. What the API server rejects in one namespace must not keep the operator
from serving the others, so lists are read namespace by namespace, and a namespace that cannot be read is reported.

Namespaces that are selected by their labels are read all at once, with the rights for the whole cluster that this takes, and what is of
no served namespace is left out. Which ones are served is known before anything is watched, and follows the watch of namespaces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import structlog

from encoder_operator import naming
from encoder_operator.client.client import Client
from encoder_operator.client.errors import ApiServerError, RequestRejected
from encoder_operator.manager.settings import Settings
from encoder_operator.metrics import metrics
from encoder_operator.naming import NamespacedName
from encoder_operator.revisions.hashing import Json, json_digest
from encoder_operator.state.observed import format_time, parse_version

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

    def serves(self, name: str) -> bool:
        """Return whether objects of a namespace that were read are served."""
        return True

    async def refresh(self) -> None:
        """Read which namespaces are served, where that is not a setting."""

    async def read(self, read: Callable[[str], Awaitable[_T]]) -> list[_T]:
        """Call ``read`` for each namespace and return the results of those that can be read.

        ``read`` is passed `*` for all namespaces; the result may then be about namespaces that are not served.

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


class SelectedNamespaces(Namespaces):
    """The namespaces whose labels match the setting `namespace_selector`.

    A namespace that starts to match has its EncoderModels enqueued. What the operator knows of one that ceases to match is forgotten,
    and its objects stay as they are.

    Args:
        client: The API server.
        settings: The selector, and where Events about namespaces are created.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        super().__init__(client, settings)
        self._selector = settings.namespace_selector
        self._served: set[str] = set()
        # of all namespaces: a list may be older than the last event
        self._versions: dict[str, int] = {}
        self._is_filled = False
        self._enqueue: Callable[[NamespacedName], None] = lambda key: None
        self._forget: Callable[[str], None] = lambda name: None

    def on_change(self, enqueue: Callable[[NamespacedName], None], forget: Callable[[str], None]) -> None:
        """Set what is called for each model of a namespace that starts to match, and for a namespace that ceases to match."""
        self._enqueue, self._forget = enqueue, forget

    @property
    def served(self) -> frozenset[str]:
        """Return the namespaces that match."""
        return frozenset(self._served)

    def serves(self, name: str) -> bool:
        """Return whether a namespace matches, as far as is known."""
        return name in self._served

    async def refresh(self) -> None:
        """Read the labels of all namespaces. It finds what a watch that was interrupted has not delivered.

        Raises:
            ApiServerError: The API server did not answer, or does not let the operator list namespaces.
        """
        before = dict(self._versions)
        found = await self._client.list_metadata("Namespace", None, "labels")
        started = [meta["name"] for meta in found if self._record(meta)]
        for name in before.keys() - {meta["name"] for meta in found}:
            # otherwise it was created again since
            if self._versions.get(name) == before[name]:
                self._remove(name)
        if self._is_filled:
            await self._enqueue_models(started)
            return
        # at the start, the watch of EncoderModels begins with all of them
        self._is_filled = True
        _LOG.info("namespaces are selected by their labels", served=len(self._served), of=len(found))

    async def read(self, read: Callable[[str], Awaitable[_T]]) -> list[_T]:
        """Refresh the served namespaces, then call ``read`` once for all namespaces.

        Raises:
            ApiServerError: The API server did not answer, or rejects the request.
        """
        await self.refresh()
        return await super().read(read)

    async def record_event(self, meta: Json, *, deleted: bool) -> None:
        """Record an event about a namespace."""
        if deleted:
            self._remove(meta["name"])
        elif self._record(meta):
            await self._enqueue_models([meta["name"]])

    def _record(self, meta: Json) -> bool:
        """Record the labels of a namespace; return whether it starts to match."""
        name, version = meta["name"], parse_version(meta["resourceVersion"])
        if version < self._versions.get(name, 0):
            return False
        self._versions[name] = version
        if not self._selector.matches(meta.get("labels") or {}):
            self._cease(name)
            return False
        if name in self._served:
            return False
        self._served.add(name)
        if self._is_filled:
            _LOG.info("a namespace is served: its labels match", namespace=name)
        return True

    def _remove(self, name: str) -> None:
        self._versions.pop(name, None)
        self._cease(name)

    def _cease(self, name: str) -> None:
        if name in self._served:
            self._served.discard(name)
            self._forget(name)
            _LOG.info("a namespace is no longer served: its labels do not match, or it is gone", namespace=name)

    async def _enqueue_models(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                models = await self._client.list_metadata(naming.KIND, name)
            except ApiServerError as error:
                # the next resync lists them
                _LOG.warning("the models of a namespace cannot be listed", namespace=name, error=str(error))
                continue
            for meta in models:
                self._enqueue(NamespacedName(meta["namespace"], meta["name"]))


def served_namespaces(client: Client, settings: Settings) -> Namespaces:
    """Return the namespaces that the settings say."""
    return (SelectedNamespaces if settings.selects_namespaces else Namespaces)(client, settings)
