"""A proxy before the API server that makes it slow, busy, broken or silent, for one client, while everybody else is served well."""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

HOP_BY_HOP = {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "content-encoding"}


@dataclass(frozen=True)
class Fault:
    """What happens to a request.

    Attributes:
        status: it is answered so, and not passed on; 0 passes it on.
        headers: of that answer.
        seconds: it waits so long before anything else.
        after: it is passed on, and its answer is replaced: the write has happened, and its sender does not know.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0
    after: bool = False


class FaultProxy:
    """Passes requests on.

    Attributes:
        fault: asked about each request that is no watch (its method and path); None lets it pass.
        silent: while true, watches bring nothing, and stay open as if nothing were wrong.
        requests: what was asked: method, path, status.
        url: its address.
    """

    def __init__(self, upstream: str, authority: Path) -> None:
        self._upstream = upstream
        self._context = ssl.create_default_context(cafile=str(authority))
        self.fault: Callable[[str, str], Fault | None] = lambda method, path: None
        self.silent = False
        self.requests: list[tuple[str, str, int]] = []
        self.url = ""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fault = None if "watch" in request.query else self.fault(request.method, request.path)
        if fault is not None:
            await asyncio.sleep(fault.seconds)
            if fault.status and not fault.after:
                return self._refused(request, fault)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        url = f"{self._upstream}{request.path_qs}"
        body = await request.read() or None
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            if fault is not None and fault.after:
                await answer.read()
                return self._refused(request, fault)
            self.requests.append((request.method, request.path, answer.status))
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            if "watch" not in request.query:
                return web.Response(body=await answer.read(), status=answer.status, headers=kept)
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                if self.silent:
                    # from now on as if every packet were dropped: this connection never brings anything again
                    await asyncio.sleep(3600)
                await response.write(chunk)
            return response

    def _refused(self, request: web.Request, fault: Fault) -> web.Response:
        self.requests.append((request.method, request.path, fault.status))
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.status, "message": "a fault"}
        headers = {"Content-Type": "application/json", **fault.headers}
        return web.Response(text=json.dumps(body), status=fault.status, headers=headers)

    async def _serve(self, up: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as self._session:
            application = web.Application(client_max_size=2**24)
            application.add_routes([web.route("*", "/{path:.*}", self._handle)])
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            up.set()
            await self._stop.wait()
            await runner.cleanup()

    @contextmanager
    def running(self) -> Iterator["FaultProxy"]:
        """Serve while the block runs."""
        up = threading.Event()
        # `run` also ends the watches that are still open
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(up)), daemon=True)
        thread.start()
        assert up.wait(10), "the proxy does not start"
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(10)


def through(proxy: FaultProxy, kubeconfig: str) -> str:
    """Return a kubeconfig with the same credentials whose server is the proxy."""
    config = yaml.safe_load(kubeconfig)
    config["clusters"][0]["cluster"] = {"server": proxy.url}
    return yaml.safe_dump(config)
