"""How Kopf reaches the API server: with the account's credentials, and asking for metadata only of what it watches.

A watch is there to say which EncoderModel to look at, for which a name, labels and a version are enough. What a list brings is
told at once, and Kopf goes on from an empty list: for each object it would make a queue and a task and call a handler, which for
a thousand models is a fifth of the operator's start.
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
        """An answer as Kopf expects it, but for what a list of what is watched holds: that is told, and taken out."""

        async def json(self, **options: Any) -> Any:
            found = await super().json(**options, loads=msgspec.json.decode)
            tell = listed.get(self.url.name)
            if tell is not None and isinstance(found, dict) and "items" in found:
                # an empty list of metadata comes as null, which no other empty list does
                for entry in found["items"] or ():
                    tell(entry["metadata"])
                found["items"] = []
            return found

    return Answer


class KopfLogin:
    """Logs Kopf in.

    Args:
        listed: by the plural name of each resource that is watched, what is called with the metadata of each object in a list.
        again: after how many seconds credentials that were just refused are tried once more: an API server that can't ask who
            somebody is refuses everybody.
    """

    def __init__(
        self, listed: Mapping[str, Callable[[Mapping[str, Any]], None]], *, again: float = _RETRY_SECONDS
    ) -> None:
        self._listed = listed
        self._again = again
        self._last: kopf.ConnectionInfo | None = None

    async def login(self, **fields: Any) -> kopf.AiohttpSession | None:
        """Return a session with the credentials that are there now; None where there are none."""
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
