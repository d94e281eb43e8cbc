"""The door of the server: which paths exist, how much may come in, and what a refusal looks like.

An ASGI class for vLLM's ``--middleware``. It reads a request's body itself, because vLLM reads it without bound, parses it
on the event loop, and answers some malformed ones with 500; a request that passes here can't be malformed for vLLM any more.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from encoder_plugins.errors import InvalidRequest, UnknownModel
from encoder_plugins.serving.graceful_shutdown import Drain
from encoder_plugins.serving.http import worker_counters
from encoder_plugins.serving.http.metrics import Counts
from encoder_plugins.serving.limits import Limits

if TYPE_CHECKING:
    from encoder_plugins.serving.processor import Admitted, EncoderProcessor

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS = frozenset({"/pooling", "/health", "/metrics", "/v1/models", "/version"})

# how much of a refused body is read and thrown away: a client that is cut off while it still sends may never read our answer
DISCARD_BYTES = 64 * 1024 * 1024


class Refusal(Exception):  # noqa: N818 - an answer, not a failure
    """A request that ends here, with the status and the sentence that its client gets."""

    def __init__(self, status: int, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after = retry_after


class Door:
    """Lets in what the server can answer, and says to the rest what is wrong."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._drain = Drain()
        self._census: worker_counters.Census = worker_counters.Alone()
        self._counts: Counts | None = None
        # tokenizers release the GIL; as many threads as cores keep a long text from delaying short ones
        self._threads = ThreadPoolExecutor(max_workers=max(2, len(os.sched_getaffinity(0))), thread_name_prefix="admit")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "lifespan":
            self._drain.take_over()
            self._census = worker_counters.of(processor_of(scope["app"]).settings.census)
            self._counts = counts_of(scope["app"])
            self._census.open()
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] not in PATHS:
            await _refuse(Refusal(404, f"no such path; there is: {', '.join(sorted(PATHS))}"), send)
        elif scope["path"] == "/pooling" and scope["method"] == "POST":
            send = _closing(send) if self._drain.stopping else send
            counts = self._counts = self._counts or counts_of(scope["app"])
            counts.request()
            try:
                await self._pool(scope, receive, _noting(send, counts), counts)
            except Refusal as refusal:
                counts.rejected(refusal.status)
                await _refuse(refusal, send)
        elif scope["path"] == "/health" and not self._census.complete():
            await _refuse(Refusal(503, "not all processes behind this port listen yet", retry_after=1), send)
        else:
            await self._app(scope, receive, send)

    async def _pool(self, scope: Scope, receive: Receive, send: Send, counts: Counts) -> None:
        processor = processor_of(scope["app"])
        limits = processor.settings.limits
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self._census.total() >= limits.in_flight:
            await _discard(receive, limits.body_seconds)
            raise Refusal(503, f"{limits.in_flight} requests are at work, the limit", retry_after=1)
        with self._working(counts):
            try:
                check_headers(headers, limits)
                admitted = await self._admit(processor, await _read(receive, limits))
            except Refusal as refusal:
                if refusal.status == 413:
                    await _discard(receive, limits.body_seconds)
                raise
            counts.tokens(admitted.tokens)
            try:
                await self._app(*_replaced(scope, receive, json.dumps(admitted.body).encode()), send)
            finally:
                processor.discard(admitted.body)

    @contextmanager
    def _working(self, counts: Counts) -> Iterator[None]:
        """Count one request, here and among all processes, for as long as the block runs."""
        try:
            with self._drain.working():
                self._census.publish(self._drain.at_work)
                counts.at_work(self._drain.at_work)
                yield
        finally:
            self._census.publish(self._drain.at_work)
            counts.at_work(self._drain.at_work)

    async def _admit(self, processor: EncoderProcessor[Any, Any], body: bytes) -> Admitted:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, processor.admit, body)
        except UnknownModel as error:
            raise Refusal(404, str(error), param=error.param) from None
        except InvalidRequest as error:
            raise Refusal(400, str(error), param=error.param) from None


def processor_of(app: Any) -> EncoderProcessor[Any, Any]:
    """Return the IO processor inside vLLM's application: the one place that knows where vLLM keeps it."""
    processor: EncoderProcessor[Any, Any] = app.state.serving_pooling.io_processors["plugin"].io_processor
    return processor


def counts_of(app: Any) -> Counts:
    """Return the counters of the plugin that an application serves."""
    settings = processor_of(app).settings
    return Counts(settings.plugin, settings.limits.in_flight)


def check_headers(headers: MutableMapping[str, str], limits: Limits) -> None:
    """Refuse what the headers give away, before a byte of the body is kept.

    Raises:
        Refusal: Another content type or an encoding (415), or an announced length beyond the limit (413).
    """
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise Refusal(
            415, f"the content type is {content_type or 'missing'}; it must be application/json", param="content-type"
        )
    if headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "the body is encoded; send it as it is", param="content-encoding")
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdecimal() and int(length) > limits.body_bytes:
        raise _too_large(limits)


def error_body(refusal: Refusal) -> bytes:
    """Return a refusal in the shape in which vLLM answers errors."""
    kinds = {404: "NotFoundError", 503: "ServiceUnavailableError"}
    error = {
        "message": refusal.message,
        "type": kinds.get(refusal.status, "BadRequestError"),
        "param": refusal.param,
        "code": refusal.status,
    }
    return json.dumps({"error": error}).encode()


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, f"the body is larger than {limits.body_bytes} bytes, the limit", param="body")


async def _read(receive: Receive, limits: Limits) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in _chunks(receive):
                size += len(chunk)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(408, f"the body took longer than {limits.body_seconds} s, the limit", param="body") from None
    return b"".join(chunks)


async def _discard(receive: Receive, seconds: int) -> None:
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in _chunks(receive):
                size += len(chunk)
                if size > DISCARD_BYTES:
                    return
    except (TimeoutError, Refusal):
        return


async def _chunks(receive: Receive) -> Any:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            # nobody is left to read this
            raise Refusal(400, "the client went away")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _noting(send: Send, counts: Counts) -> Send:
    """Count what the application refuses by itself: an answer that would be too large, say."""

    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start" and 400 <= message["status"] < 500:
            counts.rejected(message["status"])
        await send(message)

    return noting


def _closing(send: Send) -> Send:
    """Tell the client to come back on another connection, which will lead to another server."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return closing


def _replaced(scope: Scope, receive: Receive, body: bytes) -> tuple[Scope, Receive]:
    delivered = False

    async def once() -> Message:
        nonlocal delivered
        if delivered:
            # vLLM waits here for the client to go away, and then aborts the request
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    kept: Iterable[tuple[bytes, bytes]] = (
        header for header in scope["headers"] if header[0].lower() not in (b"content-length", b"transfer-encoding")
    )
    return {**scope, "headers": [*kept, (b"content-length", str(len(body)).encode())]}, once


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = error_body(refusal)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(refusal.retry_after).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
