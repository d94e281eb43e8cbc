"""The asynchronous client: one pool of connections, and the tasks that send the requests of a long list."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from encoder_client import exchange, server
from encoder_client.errors import AuthenticationError, EncoderClientError, NotServedError
from encoder_client.progress import Progress
from encoder_client.retry import BUSY
from encoder_client.server import Server
from encoder_client.settings import Settings
from encoder_client.work import POOLING, Answer, Batch, Work, param_in_call

T = TypeVar("T")


class _OfLoop:
    """What belongs to one event loop, and is of no use in another: connections, and the lock of those who read the server's description."""

    def __init__(self, settings: Settings, verify: ssl.SSLContext) -> None:
        self.http = httpx.AsyncClient(
            headers=settings.all_headers(),
            timeout=settings.timeouts(),
            limits=settings.limits(connections=settings.concurrency),
            verify=verify,
        )
        self.lock = asyncio.Lock()


class AsyncClient:
    """Sends requests to one server. Tasks may share it; ``aclose`` it, or use it in an ``async with`` block.

    Each event loop has connections of its own: ``asyncio.run`` may be called again with the same client. A call that is cancelled ends
    its requests, which the server then stops computing; the client can be used on.
    """

    def __init__(self, settings: Settings) -> None:
        """Make a client; nothing is sent yet.

        Raises:
            ArgumentError: A setting is wrong.
        """
        self.settings = settings
        self._base = settings.base_url()
        self._verify = settings.verify()
        self._of_loops: dict[asyncio.AbstractEventLoop, _OfLoop] = {}
        self._closed = False
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[type[Self], tuple[Settings]]:
        # in another process: a client with connections of its own
        return type(self), (self.settings,)

    async def aclose(self) -> None:
        """Close the connections of this event loop; there are no further requests."""
        self._closed = True
        of_loops, self._of_loops = self._of_loops, {}
        if (own := of_loops.get(asyncio.get_running_loop())) is not None:
            await own.http.aclose()

    async def server(self) -> Server:
        """Return what the server says about itself, which is read once.

        Raises:
            EncoderClientError: It could not be read.
        """
        async with self._own().lock:
            if self._server is None:
                try:
                    self._server = server.described((await self.get(server.OPENAPI)).content)
                except (NotServedError, AuthenticationError):
                    # a proxy may pass the routes of the plugin alone; a wrong key is refused again with the first request
                    self._server = Server()
            return self._server

    async def get(self, path: str) -> Answer:
        """Return the answer to a GET request; raises as ``post`` does."""
        return await self._send("GET", path, None)

    async def post(self, path: str, body: bytes) -> Answer:
        """Return the answer to a POST request with a body of JSON.

        Raises:
            EncoderClientError: There was none, or it was a refusal.
        """
        return await self._send("POST", path, body)

    async def run(self, work: Work[T]) -> T:
        """Send the requests of a call, and return its result.

        Raises:
            EncoderClientError: One of them failed; the others are cancelled.
        """
        with Progress(work.total, shown=work.progress) as progress:
            left = _Batches(work)
            first = [batch for _ in range(2) if (batch := await left.next()) is not None]
            if len(first) < 2:
                return work.combine([part for batch in first for part in await self._parts(batch, work, progress)])
            return work.combine(await self._parts_in_tasks(first, left, work, progress))

    async def _parts_in_tasks(
        self, first: list[Batch], left: _Batches, work: Work[Any], progress: Progress
    ) -> list[Any]:
        parts: dict[tuple[int, int], list[Any]] = {}

        async def send_all() -> None:
            while (batch := first.pop(0) if first else await left.next()) is not None:
                parts[batch.order] = await self._parts(batch, work, progress)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.settings.concurrency):
                    tasks.create_task(send_all())
        except BaseExceptionGroup as group:
            # the first is what the caller has to know; the others were cancelled because of it
            raise group.exceptions[0] from None
        return [part for place in sorted(parts) for part in parts[place]]

    async def _parts(self, batch: Batch, work: Work[Any], progress: Progress) -> list[Any]:
        try:
            answer = await self._send("POST", POOLING, batch.body())
        except EncoderClientError as error:
            if batch.is_too_large(error):
                return [part for half in batch.halves() for part in await self._parts(half, work, progress)]
            error.relocate(param_in_call(error.param, batch))
            raise
        part = work.part(answer, batch)
        progress.add(len(batch.items))
        return [part]

    def _own(self) -> _OfLoop:
        if self._closed:
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        own = self._of_loops.get(loop)
        if own is None:
            # the connections of a loop that has ended end with what refers to them
            left = {each: of for each, of in self._of_loops.items() if not each.is_closed()}
            own = _OfLoop(self.settings, self._verify)
            self._of_loops = {**left, loop: own}
        return own

    async def _send(self, method: str, path: str, body: bytes | None) -> Answer:
        attempts = exchange.Attempts(self.settings)
        while True:
            try:
                status, answer = await self._once(method, path, body)
            except httpx.HTTPError as error:
                seconds = attempts.failed(error)
            else:
                if status not in BUSY:
                    return exchange.checked(status, answer)
                seconds = attempts.busy(answer, status)
            await asyncio.sleep(seconds)

    async def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, Answer]:
        headers = {"content-type": "application/json"} if body is not None else {}
        async with self._own().http.stream(method, self._base + path, content=body, headers=headers) as response:
            content = bytearray()
            async for chunk in response.aiter_bytes():
                content += chunk
            return response.status_code, Answer(content, exchange.lower(response.headers))


class _Batches:
    """The requests of a call, for several tasks: one at a time is made, in a thread if that reads files."""

    def __init__(self, work: Work[Any]) -> None:
        self._batches = work.batches
        self._reads_files = work.reads_files
        self._lock = asyncio.Lock()

    async def next(self) -> Batch | None:
        """Return the next one; None behind the last."""
        if not self._reads_files:
            return next(self._batches, None)
        async with self._lock:
            return await asyncio.to_thread(next, self._batches, None)
