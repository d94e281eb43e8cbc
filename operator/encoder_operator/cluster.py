"""The only module that talks to the API server.

Objects go in and out as the API server spells them. Every write goes through ``_write``, which counts it and, for tests, kills
the operator after the n-th.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable
from typing import Any, TypeVar

import httpx2
from lightkube import ApiError, AsyncClient
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.types import CascadeType, PatchType

from encoder_operator import metrics, names
from encoder_operator.canonical import Json
from encoder_operator.errors import ClusterError, Refused, Unavailable

_KINDS: dict[str, Any] = {
    names.KIND: create_namespaced_resource(names.GROUP, names.VERSION, names.KIND, names.PLURAL),
    "ControllerRevision": create_namespaced_resource("apps", "v1", "ControllerRevision", "controllerrevisions"),
    "Deployment": create_namespaced_resource("apps", "v1", "Deployment", "deployments"),
    "Job": create_namespaced_resource("batch", "v1", "Job", "jobs"),
    "Pod": create_namespaced_resource("", "v1", "Pod", "pods"),
    "Service": create_namespaced_resource("", "v1", "Service", "services"),
    "PersistentVolumeClaim": create_namespaced_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    "ConfigMap": create_namespaced_resource("", "v1", "ConfigMap", "configmaps"),
    "Event": create_namespaced_resource("", "v1", "Event", "events"),
    "Node": create_global_resource("", "v1", "Node", "nodes"),
}
_PAGE = 500
_T = TypeVar("_T")


class Cluster:
    """A connection to the API server."""

    def __init__(
        self,
        *,
        config: SingleConfig | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        crash_after_write: int | None = None,
    ) -> None:
        self._client = AsyncClient(
            config=config or KubeConfig.from_env().get(),
            field_manager=names.MANAGER,
            transport=transport,
            timeout=httpx2.Timeout(15.0),
        )
        self._writes = 0
        self._crash_after_write = crash_after_write

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self, kind: str, namespace: str | None, name: str) -> Json | None:
        """Return an object, or None where there is none."""
        try:
            return dict(await self._ask("get", kind, self._client.get(_KINDS[kind], name, namespace=namespace)))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, kind: str, namespace: str, labels: dict[str, Any], fields: dict[str, Any] | None = None
    ) -> list[Json]:
        """Return the objects with these labels, in a namespace or (``*``) in all."""

        async def read() -> list[Json]:
            found = self._client.list(_KINDS[kind], namespace=namespace, labels=labels, fields=fields, chunk_size=_PAGE)
            return [dict(entry) async for entry in found]

        return await self._ask("list", kind, read())

    async def apply(self, manifest: Json) -> Json:
        """Make an object so, by server-side apply; fields that others have taken are taken back."""
        kind, meta = manifest["kind"], manifest["metadata"]
        call = self._client.patch(
            _KINDS[kind],
            meta["name"],
            manifest,
            namespace=meta["namespace"],
            patch_type=PatchType.APPLY,
            force=True,
        )
        return dict(await self._write("apply", kind, call))

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object, and its children in the background. One that is gone already is fine."""
        call = self._client.delete(_KINDS[kind], name, namespace=namespace, cascade=CascadeType.BACKGROUND)
        try:
            await self._write("delete", kind, call)
        except Refused as error:
            if error.status != 404:
                raise

    async def set_gate(self, namespace: str, name: str, uid: str, condition: Json) -> None:
        """Set one condition of a pod, and no other."""
        patch = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        call = self._client.patch(
            _KINDS["Pod"].Status, name, patch, namespace=namespace, patch_type=PatchType.STRATEGIC
        )
        try:
            await self._write("patch", "Pod", call)
        except ClusterError as error:
            # the pod is gone, or another one has its name: the next look sees which
            if error.status not in (404, 409):
                raise

    async def replace_status(self, namespace: str, name: str, uid: str, status: Json) -> None:
        """Replace the whole status of an EncoderModel."""
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        kind = _KINDS[names.KIND].Status
        call = self._client.patch(kind, name, patch, namespace=namespace, patch_type=PatchType.JSON)
        await self._write("patch", names.KIND, call)

    async def post_event(self, event: Json) -> None:
        """Create an Event; one of the same name says the same and is left alone."""
        event_of: Any = _KINDS["Event"](event)
        create: Any = self._client.create
        try:
            await self._write("create", "Event", create(event_of, namespace=event["metadata"]["namespace"]))
        except ClusterError as error:
            # already told (409), or the namespace is going away (403, 404): an Event is never worth a retry
            if error.status not in (403, 404, 409):
                raise

    async def _write(self, verb: str, kind: str, call: Awaitable[_T]) -> _T:
        found = await self._ask(verb, kind, call)
        self._writes += 1
        if self._writes == self._crash_after_write:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    async def _ask(self, verb: str, kind: str, call: Awaitable[_T]) -> _T:
        try:
            found = await call
        except Exception as error:
            translated = _translated(error, f"{verb} {kind}")
            if translated is None:
                raise
            metrics.REQUESTS.labels(verb, kind, translated.status or "none").inc()
            raise translated from error
        metrics.REQUESTS.labels(verb, kind, 200).inc()
        return found


def _translated(error: Exception, what: str) -> ClusterError | None:
    """Return the error as one of ours, or None if it is a mistake in our own code."""
    if isinstance(error, ApiError):
        status = error.status.code or 0
        message = f"{what}: {error.status.message}"
        if status in (401, 409, 429) or status >= 500:
            return Unavailable(message, status=status, retry_after=_retry_after(error.response))
        return Refused(message, status=status)
    if isinstance(error, httpx2.HTTPStatusError):
        status = error.response.status_code
        return Unavailable(f"{what}: HTTP {status}", status=status, retry_after=_retry_after(error.response))
    if isinstance(error, httpx2.TransportError | asyncio.TimeoutError):
        return Unavailable(f"{what}: {type(error).__name__} {error}".strip())
    if isinstance(error, KeyError) and error.args == ("Content-Type",):
        # lightkube looks for a header that a proxy's bare error does not have
        return Unavailable(f"{what}: an error without a content type")
    return None


def _retry_after(response: httpx2.Response | None) -> float | None:
    text = response.headers.get("retry-after", "") if response is not None else ""
    return float(text) if text.isdigit() else None
