"""The only module that sends requests to the API server.

Objects are passed as dictionaries, as the API server represents them. Every write goes through `_write`, which sends it
only while this operator holds the Lease and aborts it when the Lease expires. A write to an existing object carries the
uid and resourceVersion that the decision was based on, so the API server rejects it if the object has changed.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import httpx2
import msgspec
from lightkube import ApiError, AsyncClient
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError
from lightkube.types import PatchType

from encoder_operator import naming
from encoder_operator.client import kubeconfig
from encoder_operator.client.errors import (
    ApiServerError,
    Conflict,
    NotLeader,
    RequestRejected,
    Unavailable,
    error_for,
)
from encoder_operator.client.kinds import KINDS
from encoder_operator.client.leadership import Leadership
from encoder_operator.metrics import metrics
from encoder_operator.revisions.hashing import Json

# large enough that a batch of models fits on one page, small enough to limit memory
_PAGE_SIZE = 200
# of complete objects that are not kept
_STREAM_PAGE_SIZE = 50
_MAX_CONCURRENT_REQUESTS = 16
_RETRY_DELAYS = (0.1, 0.3, 1.0)
_MAX_RETRY_DELAY = 2.0
_CLOCK_TOLERANCE = timedelta(seconds=3)
# the API server's message for a JSON patch whose `test` operation fails; schema violations name the field instead
_JSON_PATCH_TEST_FAILED = "the server rejected our request due to an error in our request"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_IDENTITY_FIELDS = ("name", "namespace", "resourceVersion")
_OWNER_FIELDS = ("name", "namespace", "uid", "labels", "ownerReferences")
_T = TypeVar("_T")
# inside the class, `list` is a method
_ObjectList: TypeAlias = list[Json]


class ObjectList(NamedTuple):
    """Items of a list response, and the resourceVersion of the list."""

    items: list[Json]
    version: str


class Client:
    """Client of the API server."""

    def __init__(
        self,
        *,
        config: SingleConfig | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        leadership: Leadership | None = None,
        crash_after_write: int | None = None,
        crash_before_write: int | None = None,
    ) -> None:
        config = config or kubeconfig.load()
        timeout = httpx2.Timeout(15.0)
        with kubeconfig.certificates_read():
            self._lightkube = AsyncClient(
                config=config, field_manager=naming.MANAGER, transport=transport, timeout=timeout
            )
        # private API, for requests that lightkube has no arguments for; lightkube is pinned to one minor version, and a
        # test checks the requests
        self._requests: Any = self._lightkube._client
        self._http: httpx2.AsyncClient = self._requests._client
        self._clock_skew = timedelta()
        self._leadership = leadership or Leadership()
        self._http.event_hooks = {"request": [self._leadership.guard], "response": [self._measure_clock_skew]}
        # every connection uses memory on both sides
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)
        self._writes = 0
        self._crash_after_write = crash_after_write
        self._crash_before_write = crash_before_write

    async def close(self) -> None:
        """Close the connections."""
        await self._lightkube.close()

    @property
    def now(self) -> datetime:
        """Return the current time by the API server's clock, which also sets the timestamps of objects."""
        return datetime.now(UTC) - self._clock_skew

    async def _measure_clock_skew(self, response: httpx2.Response) -> None:
        with suppress(TypeError, ValueError):
            ahead = datetime.now(UTC) - parsedate_to_datetime(response.headers.get("date", ""))
            # the header has whole seconds only, and the response takes time to arrive
            self._clock_skew = ahead if abs(ahead) > _CLOCK_TOLERANCE else timedelta()

    async def get(self, kind: str, namespace: str | None, name: str) -> Json | None:
        """Return an object, or None if it does not exist."""
        try:
            return dict(
                await self._read("get", kind, lambda: self._lightkube.get(KINDS[kind], name, namespace=namespace))
            )
        except RequestRejected as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, kind: str, namespace: str, labels: dict[str, Any], fields: dict[str, Any] | None = None
    ) -> list[Json]:
        """Return the objects that match the selectors, in one namespace or in all (`*`)."""
        return (await self.list_with_version(kind, namespace, labels, fields)).items

    async def list_with_version(
        self, kind: str, namespace: str | None, labels: dict[str, Any], fields: dict[str, Any] | None = None
    ) -> ObjectList:
        """Return the matching objects and the resourceVersion of the list."""

        async def read() -> ObjectList:
            found = self._lightkube.list(
                KINDS[kind], namespace=namespace, labels=labels, fields=fields, chunk_size=_PAGE_SIZE
            )
            items = [dict(entry) async for entry in found]
            return ObjectList(items, found.resourceVersion or "")

        return await self._read("list", kind, read)

    async def for_each(
        self, kind: str, namespace: str, labels: dict[str, Any], consume: Callable[[Json], None]
    ) -> None:
        """Pass the matching objects to `consume`, a page at a time. After a failed page, the list is read again from its start."""

        async def read() -> None:
            found = self._lightkube.list(KINDS[kind], namespace=namespace, labels=labels, chunk_size=_STREAM_PAGE_SIZE)
            async for entry in found:
                consume(dict(entry))

        await self._read("list", kind, read)

    async def list_metadata(self, kind: str, namespace: str | None, *more: str) -> _ObjectList:
        """Return name, namespace, resourceVersion and ``more`` of the metadata of all objects of a kind."""
        found = await self._list_metadata(kind, namespace, (*_IDENTITY_FIELDS, *more), "")
        return [entry["metadata"] for entry in found]

    async def list_owners(self, kind: str, namespace: str, label: str, values: Iterable[str]) -> _ObjectList:
        """Return the objects whose ``label`` has one of ``values``, with no more than their identity, labels and owners."""
        return await self._list_metadata(kind, namespace, _OWNER_FIELDS, f"{label} in ({','.join(values)})")

    async def _list_metadata(self, kind: str, namespace: str | None, fields: Sequence[str], labels: str) -> _ObjectList:
        async def read() -> _ObjectList:
            found: _ObjectList = []
            more = ""
            while True:
                query = {"limit": str(_PAGE_SIZE)} | ({"continue": more} if more else {})
                query |= {"labelSelector": labels} if labels else {}
                page = await self._raw("list", kind, namespace, None, query, accept=_METADATA_ONLY)
                found += [
                    {"metadata": {field: value for field, value in entry["metadata"].items() if field in fields}}
                    for entry in page["items"] or []
                ]
                more = page["metadata"].get("continue", "")
                if not more:
                    return found

        return await self._read("list", kind, read)

    async def read_log(self, namespace: str, pod: str, lines: int) -> str:
        """Return the last lines of a pod's log, or an empty string if it cannot be read."""

        async def read() -> str:
            # lightkube's `log` has no limit in bytes, and a user's image may print lines of any length
            path = f"api/v1/namespaces/{namespace}/pods/{pod}/log"
            answer = await self._http.get(path, params={"tailLines": lines, "limitBytes": 65536})
            answer.raise_for_status()
            return str(answer.text)

        try:
            return await self._send("log", "Pod", read())
        except ApiServerError:
            # the log is optional: the container may be starting, or its node may be unreachable
            return ""

    async def has_resource(self, group: str, version: str, plural: str) -> bool:
        """Return whether the API server serves a resource."""

        async def read() -> Json:
            answer = await self._http.get(f"apis/{group}/{version}")
            if answer.status_code == 404:
                return {}
            answer.raise_for_status()
            return dict(answer.json())

        found = await self._send("get", "APIResourceList", read())
        return any(entry["name"] == plural for entry in found.get("resources", []))

    async def get_schema(self, group: str, version: str, kind: str) -> Json:
        """Return the OpenAPI schema of a kind, or an empty one if the API server has none."""

        async def read() -> Json:
            answer = await self._http.get(f"openapi/v3/apis/{group}/{version}")
            answer.raise_for_status()
            return dict(answer.json())

        found = await self._send("get", "OpenAPI", read())
        schemas = (found.get("components") or {}).get("schemas") or {}
        wanted = {"group": group, "kind": kind, "version": version}
        return next((s for s in schemas.values() if wanted in (s.get("x-kubernetes-group-version-kind") or [])), {})

    async def can_i(self, attributes: Json) -> bool:
        """Return whether the operator has a permission, by a SelfSubjectAccessReview."""

        async def create_review() -> Json:
            # a review has no metadata, which lightkube requires for a create
            path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = await self._http.post(path, json=review)
            answer.raise_for_status()
            return dict(answer.json())

        found = await self._send("create", "SelfSubjectAccessReview", create_review())
        return bool(found.get("status", {}).get("allowed"))

    async def put_lease(self, lease: Json) -> Json:
        """Create a Lease, or replace exactly the version that was read."""
        meta = lease["metadata"]
        body: Any = KINDS["Lease"](lease)
        client: Any = self._lightkube
        # bypasses _write, which would require the Lease that this request is about to acquire
        if "resourceVersion" in meta:
            return dict(await self._send("update", "Lease", client.replace(body, namespace=meta["namespace"])))
        return dict(await self._send("create", "Lease", client.create(body, namespace=meta["namespace"])))

    async def apply(self, manifest: Json, live: Json | None = None) -> Json:
        """Apply an object by server-side apply. Fields that other managers have taken over are forced back.

        Args:
            manifest: The object to apply.
            live: The object as it was read, or None if it did not exist. If it has changed since, nothing is written.
        """
        kind, meta = manifest["kind"], manifest["metadata"]
        if live is not None:
            manifest = {**manifest, "metadata": {**meta, **_precondition(live["metadata"])}}

        def send() -> Awaitable[Any]:
            return self._lightkube.patch(
                KINDS[kind],
                meta["name"],
                manifest,
                namespace=meta["namespace"],
                patch_type=PatchType.APPLY,
                force=True,
            )

        return dict(await self._write("apply", kind, send))

    async def create(self, manifest: Json) -> None:
        """Create an object. Server-side apply would merge the manifest into an existing object of the same name.

        Raises:
            Conflict: An object of the same name exists.
        """
        kind, meta = manifest["kind"], manifest["metadata"]
        body: Any = KINDS[kind](manifest)
        create: Any = self._lightkube.create
        await self._write("create", kind, lambda: create(body, namespace=meta["namespace"]))

    async def dry_run_apply(self, manifest: Json) -> None:
        """Validate an object as a dry run of server-side apply. Nothing is written."""
        kind, meta = manifest["kind"], manifest["metadata"]
        call = self._lightkube.patch(
            KINDS[kind],
            meta["name"],
            manifest,
            namespace=meta["namespace"],
            patch_type=PatchType.APPLY,
            force=True,
            dry_run=True,
        )
        await self._send("dry-run", kind, call)

    async def delete(self, kind: str, namespace: str, name: str, seen: Json | None = None) -> None:
        """Delete an object and, in the background, its dependents. An object that does not exist is not an error.

        Args:
            kind: Kind of the object.
            namespace: Namespace of the object.
            name: Name of the object.
            seen: Its metadata as it was read. If it has changed since, nothing is deleted.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": _precondition(seen or {}),
        }
        try:
            await self._write("delete", kind, lambda: self._raw("delete", kind, namespace, name, {}, body=options))
        except RequestRejected as error:
            if error.status != 404:
                raise

    async def set_pod_conditions(
        self, namespace: str, name: str, uid: str, conditions: Sequence[Json], version: str | None = None
    ) -> None:
        """Set some conditions of a pod and leave the others unchanged."""
        precondition = {"uid": uid} | ({"resourceVersion": version} if version else {})
        patch = {"metadata": precondition, "status": {"conditions": conditions}}

        def send() -> Awaitable[Any]:
            return self._lightkube.patch(
                KINDS["Pod"].Status, name, patch, namespace=namespace, patch_type=PatchType.STRATEGIC
            )

        try:
            await self._write("patch", "Pod", send)
        except ApiServerError as error:
            # the pod is gone, was replaced or has changed; its event enqueues the next reconcile, which reads the new
            # state
            if error.status not in (404, 409):
                raise

    async def replace_status(self, namespace: str, name: str, seen: Json, status: Json) -> str:
        """Replace the status of an EncoderModel that has not changed since it was read, and return the new resourceVersion.

        Args:
            namespace: Namespace of the EncoderModel.
            name: Name of the EncoderModel.
            seen: Its metadata as it was read.
            status: The new status.
        """
        tests = [
            {"op": "test", "path": f"/metadata/{field}", "value": value} for field, value in _precondition(seen).items()
        ]
        patch = [*tests, {"op": "add", "path": "/status", "value": status}]
        kind = KINDS[naming.KIND].Status

        def send() -> Awaitable[Any]:
            return self._lightkube.patch(kind, name, patch, namespace=namespace, patch_type=PatchType.JSON)

        try:
            found = dict(await self._write("patch", naming.KIND, send))
        except RequestRejected as error:
            if error.status == 422 and _JSON_PATCH_TEST_FAILED in str(error):
                raise Conflict(str(error), status=409) from error
            raise
        return str(found.get("metadata", {}).get("resourceVersion", ""))

    async def create_event(self, event: Json) -> None:
        """Create an Event. An existing Event of the same name has the same content and is left unchanged."""
        event_of: Any = KINDS["Event"](event)
        create: Any = self._lightkube.create
        try:
            await self._write("create", "Event", lambda: create(event_of, namespace=event["metadata"]["namespace"]))
        except ApiServerError as error:
            # the Event exists (409), the namespace is being deleted or the server is busy; an Event is not worth
            # another reconcile
            if isinstance(error, NotLeader):
                raise

    async def _raw(
        self,
        method: str,
        kind: str,
        namespace: str | None,
        name: str | None,
        query: dict[str, str],
        *,
        body: Json | None = None,
        accept: str | None = None,
    ) -> Json:
        """Send a request that lightkube has no arguments for: preconditions of a delete, metadata-only lists."""
        client = self._requests
        request = client.prepare_request(method, KINDS[kind], name=name, namespace=namespace, params=query)
        if body is not None:
            request.data = body
        if accept is not None:
            request.headers = {"Accept": accept}
        answer = await client.send(client.build_adapter_request(request))
        client.raise_for_status(answer)
        return dict(answer.json())

    async def _write(self, verb: str, kind: str, send: Callable[[], Awaitable[_T]]) -> _T:
        # not an exact match: concurrent writes may step over the number
        if self._crash_before_write is not None and self._writes + 1 >= self._crash_before_write:
            os.kill(os.getpid(), signal.SIGKILL)
        left = self._leadership.remaining()
        if left <= 0:
            raise NotLeader(f"{verb} {kind}: not sent because this operator does not hold the lease")
        # without leader election the permission to write never ends
        sending = self._send_write(verb, kind, send)
        found = await (sending if math.isinf(left) else self._leadership.send(f"{verb} {kind}", sending))
        self._writes += 1
        if self._writes == self._crash_after_write:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    async def _send_write(self, verb: str, kind: str, send: Callable[[], Awaitable[_T]]) -> _T:
        """Send a write, and retry it if the API server rejected it before executing it (429)."""
        for pause in _RETRY_DELAYS:
            try:
                return await self._send(verb, kind, send())
            except Unavailable as error:
                if error.status != 429 or (error.retry_after or 0.0) > _MAX_RETRY_DELAY:
                    raise
                await asyncio.sleep(max(pause, error.retry_after or 0.0))
        return await self._send(verb, kind, send())

    async def _read(self, verb: str, kind: str, send: Callable[[], Awaitable[_T]]) -> _T:
        """Send a read, and retry it immediately if the API server is briefly unavailable."""
        for pause in _RETRY_DELAYS:
            try:
                return await self._send(verb, kind, send())
            except Unavailable as error:
                if (error.retry_after or 0.0) > _MAX_RETRY_DELAY:
                    raise
                await asyncio.sleep(max(pause, error.retry_after or 0.0))
        return await self._send(verb, kind, send())

    async def _send(self, verb: str, kind: str, call: Awaitable[_T]) -> _T:
        try:
            async with self._slots:
                found = await call
        except Exception as error:
            translated = _translate_error(error, f"{verb} {kind}")
            if translated is None:
                raise
            metrics.REQUESTS.labels(verb, kind, translated.status or "none").inc()
            raise translated from error
        metrics.REQUESTS.labels(verb, kind, 200).inc()
        return found


def _precondition(meta: Json) -> dict[str, str]:
    return {field: meta[field] for field in ("uid", "resourceVersion") if meta.get(field)}


def _translate_error(error: Exception, what: str) -> ApiServerError | None:
    """Return the error as one of the operator's own types, or None for an unexpected error."""
    if isinstance(error, ApiError):
        status, details = error.status.code or 0, error.status.details
        causes = [cause.message or "" for cause in (details.causes or [] if details else [])]
        message = ": ".join(part for part in (what, error.status.message, *causes) if part)
        return error_for(message, status, _retry_after(error.response))
    if isinstance(error, httpx2.HTTPStatusError):
        status = error.response.status_code
        return Unavailable(f"{what}: HTTP {status}", status=status, retry_after=_retry_after(error.response))
    # the others: a token file or a credential plugin of the kubeconfig failed
    if isinstance(error, httpx2.TransportError | ConfigError | OSError):
        return Unavailable(f"{what}: {type(error).__name__} {error}".strip())
    if isinstance(error, json.JSONDecodeError | msgspec.DecodeError):
        return Unavailable(f"{what}: the response cannot be parsed: {error}")
    if isinstance(error, KeyError) and error.args == ("Content-Type",):
        # lightkube requires a Content-Type header, which error pages of proxies may lack
        return Unavailable(f"{what}: an error response without a Content-Type")
    return None


def _retry_after(response: httpx2.Response | None) -> float | None:
    text = response.headers.get("retry-after", "") if response is not None else ""
    return float(text) if text.isdigit() else None
