"""Credentials and content negotiation for Kopf's requests: metadata-only lists and watches.

An event only has to identify an EncoderModel, for which name, labels and resourceVersion are enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import aiohttp
import kopf
import msgspec

_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA_WATCH = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_RETRY_SECONDS = 5.0
_WHOLE_LIST = aiohttp.ClientTimeout(total=120.0)


class _Response(aiohttp.ClientResponse):
    """A response whose list Kopf can iterate, without field managers.

    A metadata-only list without items has null items, unlike other empty lists. Most of an object's metadata is about field
    managers, and Kopf keeps an object for as long as it handles its event.
    """

    async def json(self, **options: Any) -> Any:
        found = await super().json(**{**options, "loads": msgspec.json.decode})
        if isinstance(found, dict) and "items" in found:
            found["items"] = found["items"] or []
            for item in found["items"]:
                item.get("metadata", {}).pop("managedFields", None)
        return found


async def _list_whole_when_expired(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Answer the next page of a list that the API server no longer has with the whole list as it is now.

    The API server forgets a version after five minutes or so, and Kopf, which ends the operator when that happens in a list, reads a page
    when it has handled the one before. Objects that come twice only enqueue their EncoderModel twice. client-go does the same.
    """
    response = await send(request)
    if response.status != 410 or request.method != "GET" or "continue" not in request.url.query:
        return response
    response.release()
    whole = request.url.without_query_params("continue", "limit")
    return await request.session.get(whole, timeout=_WHOLE_LIST)


class KopfLogin:
    """Provides Kopf's session.

    Args:
        plurals: Plural names of the resources that are requested as metadata only.
        again: Seconds until rejected credentials are used again. An API server that cannot reach its authenticator
            rejects all credentials for a while.
    """

    def __init__(self, plurals: Collection[str], *, again: float = _RETRY_SECONDS) -> None:
        self._plurals = frozenset(plurals)
        self._again = again
        self._last: kopf.ConnectionInfo | None = None

    async def login(self, **fields: Any) -> kopf.AiohttpSession | None:
        """Return a session with the current credentials, or None if there are none."""
        info = kopf.login_with_service_account(**fields) or kopf.login_with_kubeconfig(**fields)
        if info is None:
            return None
        if info == self._last:
            await asyncio.sleep(self._again)
        self._last = info
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            middlewares=(_list_whole_when_expired, self._request_metadata),
            response_class=_Response,
        )
        return kopf.AiohttpSession(
            server=info.server,
            aiohttp_session=session,
            priority=info.priority,
            default_namespace=info.default_namespace,
            expiration=info.expiration,
        )

    async def _request_metadata(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if request.method == "GET" and request.url.name in self._plurals:
            request.headers["Accept"] = _METADATA_WATCH if "watch" in request.url.query else _METADATA_LIST
        return await send(request)
