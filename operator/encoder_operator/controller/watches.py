"""Watch EncoderModels and their children with Kopf. Every handler only enqueues the EncoderModel that an event belongs to.

Only `on.event` handlers are used: they need no annotation, no finalizer and no write by Kopf.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import kopf

# private API; Kopf is pinned to one minor version, and a test checks the behaviour that is needed
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from encoder_operator import naming
from encoder_operator.client.credentials import KopfLogin
from encoder_operator.controller.namespaces import Namespaces, SelectedNamespaces
from encoder_operator.controller.watch_progress import WatchProgress
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.naming import NamespacedName

_CHILDREN = (
    ("", "v1", "pods", "Pod"),
    ("", "v1", "services", "Service"),
    ("batch", "v1", "jobs", "Job"),
    ("apps", "v1", "deployments", "Deployment"),
)

_NAMESPACES = "namespaces"
_LOGIN_RETRY_SECONDS = 5.0
_RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0)
_MAX_RETRY_DELAY = 8.0


def kopf_registry(queue: WorkQueue, watch_progress: WatchProgress, namespaces: Namespaces) -> kopf.OperatorRegistry:
    """Return the registry of Kopf handlers.

    Args:
        queue: Where the handlers enqueue EncoderModels.
        watch_progress: Records which versions the watches have delivered.
        namespaces: Which namespaces are served; those that are selected by their labels are watched too.
    """
    # the default registry would log in with any Kubernetes client that is installed
    found = kopf.OperatorRegistry()

    def came(kind: str, meta: Mapping[str, Any]) -> None:
        key = _model_of(kind, meta)
        # before anything is recorded: what is not served must not use memory
        if not namespaces.serves(key.namespace):
            return
        # a deletion has a version of its own, so a running reconcile is followed by one that finds the object gone
        if watch_progress.record_event(key, kind, meta["resourceVersion"]):
            queue.enqueue(key)

    plurals = (naming.PLURAL, _NAMESPACES, *(plural for _, _, plural, _ in _CHILDREN))
    # a kubeconfig may be read while another process writes it
    kopf.on.login(id="login", registry=found, backoff=_LOGIN_RETRY_SECONDS)(KopfLogin(plurals).login)

    @kopf.on.event(naming.GROUP, naming.VERSION, naming.PLURAL, id="model_changed", registry=found)
    async def model_changed(meta: Any, **_: Any) -> None:
        came(naming.KIND, meta)

    if isinstance(namespaces, SelectedNamespaces):
        # all of them: the API server would report that one ceases to match only to a watch that is never interrupted
        @kopf.on.event("", "v1", _NAMESPACES, id="namespace_changed", registry=found)
        async def namespace_changed(event: Any, meta: Any, **_: Any) -> None:
            await namespaces.record_event(dict(meta), deleted=event["type"] == "DELETED")

    def child(kind: str) -> Any:
        async def child_changed(meta: Any, **_: Any) -> None:
            came(kind, meta)

        return child_changed

    for group, version, plural, kind in _CHILDREN:
        labels: Any = {naming.MODEL: kopf.PRESENT}
        kopf.on.event(group, version, plural, labels=labels, id=f"{plural}_changed", registry=found)(child(kind))
    return found


def _model_of(kind: str, meta: Mapping[str, Any]) -> NamespacedName:
    name = meta["name"] if kind == naming.KIND else meta["labels"][naming.MODEL]
    return NamespacedName(meta.get("namespace") or "", name)


class _NullDiffBaseStorage(kopf.DiffBaseStorage):
    """Stores no previous state: the handlers need no diffs, for which Kopf would copy every object twice."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NullProgressStorage(kopf.ProgressStorage):
    """Stores no handler progress: event handlers have none."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


class NullMemories(ResourceMemories):
    """Keeps no memory of objects, which would cost several kilobytes each: the handlers need none."""

    async def recall(self, raw_body: Any, **options: Any) -> ResourceMemory:
        """Return a memory that is discarded after the event."""
        return await super().recall(raw_body, **{**options, "ephemeral": True})


class _RetryDelays:
    """Delays between attempts of a request. The sequence never ends, because Kopf does not restart a watch that has given up."""

    def __iter__(self) -> Iterator[float]:
        for pause in itertools.chain(_RETRY_DELAYS, itertools.repeat(_MAX_RETRY_DELAY)):
            yield random.uniform(pause / 2, pause)


def kopf_settings() -> kopf.OperatorSettings:
    """Return Kopf's settings: server-side selectors, no posted events, no stored state, no resource scanning, endless retries."""
    found = kopf.OperatorSettings()
    found.persistence.diffbase_storage = _NullDiffBaseStorage()
    found.persistence.progress_storage = _NullProgressStorage()
    for group, version, plural, _ in _CHILDREN:
        found.watching.label_selectors[group, version, plural] = naming.MODEL
    # Kopf has a queue and a task for each object of a page, and reads the next page when it has made them
    found.watching.chunk_size = 20
    found.watching.server_timeout = 300
    found.watching.client_timeout = 320
    # reconnect a watch that has not delivered even a bookmark
    found.watching.inactivity_timeout = 70
    found.posting.enabled = False
    found.scanning.disabled = True
    found.peering.standalone = True
    found.queueing.exit_timeout = 1.0
    # how long the worker of an object keeps its last event
    found.queueing.idle_timeout = 0.05
    found.networking.error_backoffs = _RetryDelays()
    found.networking.connect_timeout = 10.0
    # for list requests, which are paged; watches have timeouts of their own
    found.networking.request_timeout = 30.0
    # it would start only when Kopf learns of the shutdown, and only while the event loop runs; see manager.py
    found.process.ultimate_exiting_timeout = None
    return found
