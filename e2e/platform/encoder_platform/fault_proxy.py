"""A proxy before the API server that makes it slow, busy, broken or silent, for one client, while everybody else is served well."""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
        until: it waits until this is so, whether its sender still waits or not.
        after: it is passed on, and its answer is replaced: the write has happened, and its sender does not know.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0
    until: Callable[[], bool] = lambda: True
    after: bool = False


class FaultProxy:
    """Passes requests on.

    Attributes:
        fault: called with each request (its method, which is WATCH for a watch and PAGE for a list's later pages, and its path);
            None lets it pass.
        requests: each request and its answer: method, path, status.
        held: what waits.
        url: its address.
    """

    def __init__(self, upstream: str, ca_file: Path) -> None:
        self._upstream = upstream
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self.fault: Callable[[str, str], Fault | None] = lambda method, path: None
        self.requests: list[tuple[str, str, int]] = []
        self.held: list[tuple[str, str]] = []
        self.url = ""
        # what is passed on, and from where
        self._watches: dict[web.StreamResponse, aiohttp.ClientResponse] = {}
        self._silent: set[web.StreamResponse] = set()

    def send(self, event: dict[str, object]) -> None:
        """Put an event into every watch, as if it had come from the API server."""
        line = json.dumps(event).encode() + b"\n"

        async def write() -> None:
            for watch in list(self._watches):
                await watch.write(line)

        asyncio.run_coroutine_threadsafe(write(), self._loop).result(10)

    def silence(self) -> None:
        """Drop what comes on every watch that is open now. They stay open as if nothing were wrong; later ones work."""

        async def drop() -> None:
            self._silent.update(self._watches)

        asyncio.run_coroutine_threadsafe(drop(), self._loop).result(10)

    def cut(self) -> None:
        """End every watch: a client has to watch again."""

        async def end() -> None:
            for answer in list(self._watches.values()):
                answer.close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = "watch" in request.query
        method = "WATCH" if watch else "PAGE" if "continue" in request.query else request.method
        # before anything else: where the sender has gone meanwhile it can't be read any more
        body = await request.read() or None
        fault = self.fault(method, request.path)
        if fault is not None:
            await self._wait(method, request.path, fault)
            if fault.status and (watch or not fault.after):
                return self._refused(method, request, fault)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        url = f"{self._upstream}{request.path_qs}"
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            if fault is not None and fault.status:
                await answer.read()
                return self._refused(method, request, fault)
            self.requests.append((method, request.path, answer.status))
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            if not watch:
                return web.Response(body=await answer.read(), status=answer.status, headers=kept)
            return await self._stream(request, answer, web.StreamResponse(status=answer.status, headers=kept))

    async def _wait(self, method: str, path: str, fault: Fault) -> None:
        self.held.append((method, path))
        await asyncio.sleep(fault.seconds)
        while not fault.until():
            await asyncio.sleep(0.02)
        self.held.remove((method, path))

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> web.StreamResponse:
        await response.prepare(request)
        self._watches[response] = answer
        try:
            with suppress(aiohttp.ClientError):
                async for chunk in answer.content.iter_any():
                    if response in self._silent:
                        # as if every packet were dropped: this connection never brings anything again
                        await asyncio.sleep(3600)
                    await response.write(chunk)
        finally:
            del self._watches[response]
            self._silent.discard(response)
        return response

    def _refused(self, method: str, request: web.Request, fault: Fault) -> web.Response:
        self.requests.append((method, request.path, fault.status))
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.status, "message": "a fault"}
        # as the API server spells it: with a charset it is no error of the API server's to some clients
        headers = {"Content-Type": "application/json", **fault.headers}
        return web.Response(body=json.dumps(body).encode(), status=fault.status, headers=headers)

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
            # first, since it ends connections at once: one that a watch's handler gives back waits for the API server to agree
            await self._session.close()
            await runner.cleanup()
            # a connection that was being opened meanwhile is closed behind that, and nothing waits for it
            await asyncio.sleep(0.1)

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
