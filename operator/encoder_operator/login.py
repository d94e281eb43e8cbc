"""How Kopf reaches the API server: with the account's credentials, and asking for metadata only of what it watches.

A watch is there to say which EncoderModel to look at, for which a name, labels and a version are enough. Kopf holds what it
lists until its handlers have run: whole pods and Deployments of a thousand models would be most of the operator's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Any

import aiohttp
import kopf
import msgspec

_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_WATCH = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_AGAIN_SECONDS = 5.0


class _Answer(aiohttp.ClientResponse):
    """An answer as Kopf expects it."""

    async def json(self, **options: Any) -> Any:
        """Return the object; an empty list of metadata comes as null, which no other empty list does."""
        found = await super().json(**options, loads=msgspec.json.decode)
        if isinstance(found, dict) and "items" in found and found["items"] is None:
            found["items"] = []
        return found


class Login:
    """Logs Kopf in.

    Args:
        plurals: the resources of which metadata is enough.
        again: after how many seconds credentials that were just refused are tried once more: an API server that can't ask who
            somebody is refuses everybody.
    """

    def __init__(self, plurals: Container[str], *, again: float = _AGAIN_SECONDS) -> None:
        self._plurals = plurals
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
            middlewares=(self._ask,),
            response_class=_Answer,
        )
        return kopf.AiohttpSession(
            server=info.server,
            aiohttp_session=session,
            priority=info.priority,
            default_namespace=info.default_namespace,
            expiration=info.expiration,
        )

    async def _ask(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if request.method == "GET" and request.url.name in self._plurals:
            request.headers["Accept"] = _WATCH if "watch" in request.url.query else _LIST
        return await send(request)
