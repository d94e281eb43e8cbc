"""A server of files with a certificate on the loopback interface, from where requests fetch, and where some things are wrong."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from httpx_secure import httpx_ssrf_protection

from encoder_plugins.inputs import remote
from encoder_plugins.prep.tests import certificates


@dataclass
class Origin:
    """The server.

    Attributes:
        files: Type and content by path.
        host: As an allowed host.
        requests: What it was sent.
        crowd: So many requests to ``/crowd`` wait for each other.
        most_at_once: The largest number of them at the same time.
    """

    files: Mapping[str, tuple[str, bytes]]
    host: str = ""
    requests: list[web.BaseRequest] = field(default_factory=list)
    crowd: int = 1
    most_at_once: int = 0
    _now: int = 0
    _crowded: asyncio.Event = field(default_factory=asyncio.Event)

    def address(self, path: str) -> str:
        """Return the address of a path."""
        return f"https://{self.host}{path}"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer with a file, which ``/unstated``, ``/compressed``, ``/slow``, ``/crowd`` and ``/moved`` are in front of, or redirect."""
        self.requests.append(request)
        how, _, name = request.path.removeprefix("/").rpartition("/")
        kind, content = self.files.get(f"/{name}", ("", b""))
        headers = {"Content-Type": kind}
        match how:
            case "" if kind:
                return web.Response(body=content, headers=headers)
            case "unstated":
                response = web.StreamResponse(headers=headers)
                response.enable_chunked_encoding()
                await response.prepare(request)
                for _ in range(1000):
                    await response.write(bytes(100))
                return response
            case "compressed":
                return web.Response(body=content, headers={**headers, "Content-Encoding": "gzip"})
            case "slow":
                await asyncio.sleep(30)
                return web.Response(body=content, headers=headers)
            case "crowd":
                self._now += 1
                self.most_at_once = max(self.most_at_once, self._now)
                if self._now == self.crowd:
                    # one more than should come has time to come
                    await asyncio.sleep(0.1)
                    self._crowded.set()
                await asyncio.wait_for(self._crowded.wait(), 20)
                self._now -= 1
                return web.Response(body=content, headers=headers)
            case "moved":
                raise web.HTTPFound(f"/{name}")
            case "inside":
                raise web.HTTPFound(f"https://169.254.169.254/{name}")
            case "plain":
                raise web.HTTPFound(f"http://{self.host}/{name}")
            case "local":
                raise web.HTTPFound("file:///etc/hostname")
            case "around":
                raise web.HTTPFound(request.path)
            case _:
                raise web.HTTPNotFound


@asynccontextmanager
async def running(files: Mapping[str, tuple[str, bytes]], folder: Path) -> AsyncIterator[Origin]:
    """Serve files while the block lasts; ``ca.crt`` in ``folder`` is the certificate."""
    certificate, key = certificates.write(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    found = Origin(files)
    runner = web.ServerRunner(web.Server(found.answer), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        found.host = "{}:{}".format(*runner.addresses[0])
        yield found
    finally:
        await runner.cleanup()


def allow_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients connect to this machine, and to no other."""

    def protected(client: httpx.AsyncClient) -> httpx.AsyncClient:
        return httpx_ssrf_protection(
            client, check_globally_reachable=False, custom_validator=lambda host, address, port: address.is_loopback
        )

    monkeypatch.setattr(remote, "_protected", protected)
    monkeypatch.setattr(remote, "is_public", lambda address: address.is_loopback)
