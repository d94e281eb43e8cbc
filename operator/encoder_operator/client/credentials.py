"""Credentials and content negotiation for Kopf's requests: metadata-only lists and watches.

An event only has to identify an EncoderModel, for which name, labels and resourceVersion are enough. The items of a
list are passed on directly, and Kopf receives an empty list: otherwise it would create a queue and a task and call a
handler per object, which took a fifth of the start-up time with a thousand models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import kopf
import msgspec

_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA_WATCH = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_RETRY_SECONDS = 5.0


def _response_class(listed: Mapping[str, Callable[[Mapping[str, Any]], None]]) -> type[aiohttp.ClientResponse]:
    class Answer(aiohttp.ClientResponse):
        """A response as Kopf expects it. Items of a list of watched resources are passed to a callback and removed."""

        async def json(self, **options: Any) -> Any:
            found = await super().json(**options, loads=msgspec.json.decode)
            callback = listed.get(self.url.name)
            if callback is not None and isinstance(found, dict) and "items" in found:
                # an empty metadata list has null items, unlike other empty lists
                for entry in found["items"] or ():
                    callback(entry["metadata"])
                found["items"] = []
            return found

    return Answer


class KopfLogin:
    """Provides Kopf's session.

    Args:
        listed: Callbacks by plural name of each watched resource. They receive the metadata of each object in a list.
        again: Seconds until rejected credentials are used again. An API server that cannot reach its authenticator
            rejects all credentials for a while.
    """

    def __init__(
        self, listed: Mapping[str, Callable[[Mapping[str, Any]], None]], *, again: float = _RETRY_SECONDS
    ) -> None:
        self._listed = listed
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
            middlewares=(self._request_metadata,),
            response_class=_response_class(self._listed),
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
        if request.method == "GET" and request.url.name in self._listed:
            request.headers["Accept"] = _METADATA_WATCH if "watch" in request.url.query else _METADATA_LIST
        return await send(request)
