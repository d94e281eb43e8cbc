"""Connections whose headers come slowly, or without end; uvicorn itself is around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn

from encoder_plugins.serving.http.admission import MOST_HEADER_BYTES, Receive, Scope, Send
from encoder_plugins.serving.http.balance import Connections
from encoder_plugins.serving.http.connection import protocol
from encoder_plugins.serving.http.worker_counters import SingleProcess

# a server that waits for a connection would wait for ever
pytestmark = pytest.mark.timeout(20)

SECONDS = 0.4
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
# more than lies in the buffers between server and client
MUCH = b"x" * 20_000_000


class Noted(SingleProcess):
    """Notes how many connections there are."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[int] = []

    def publish_connections(self, connections: int) -> None:
        self.published.append(connections)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the length of the body, after the time that the query names; or with much, and close the connection."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close"})
        return
    if scope["path"] == "/much":
        headers = [(b"content-length", b"%d" % len(MUCH)), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": MUCH})
        return
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await asyncio.sleep(float(scope["query_string"] or 0))
    body = str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connection(
    seconds: float = SECONDS, counters: SingleProcess | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to a server whose headers may take so many seconds."""
    http = protocol(seconds, Connections(counters or SingleProcess(), time.monotonic))
    config = uvicorn.Config(application, port=0, lifespan="off", log_level="critical", http=http)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await serving


async def status(reader: asyncio.StreamReader) -> str:
    """Read one response; return its status line's number, and its body."""
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return f"{head[9:12].decode()} {(await reader.readexactly(length)).decode()}".strip()


async def test_a_silent_connection_is_closed_with_a_status() -> None:
    async with connection() as (reader, _):
        assert await status(reader) == "408"
        assert await reader.read() == b""


async def test_a_header_line_now_and_then_does_not_keep_a_connection() -> None:
    async with connection() as (reader, writer):

        async def talk() -> None:
            writer.write(b"GET / HTTP/1.1\r\n")
            while True:
                writer.write(b"x-line: x\r\n")
                await asyncio.sleep(SECONDS / 10)

        talking = asyncio.create_task(talk())
        assert await status(reader) == "408"
        talking.cancel()


@pytest.mark.parametrize("first", [b"", GET])
async def test_headers_without_end_are_refused(first: bytes) -> None:
    async with connection() as (reader, writer):
        writer.write(first)
        if first:
            assert await status(reader) == "200 0"
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"x" * 140_000)
        assert await status(reader) == "431"


async def test_many_requests_of_one_connection_each_have_their_own_bytes_and_time() -> None:
    async with connection() as (reader, writer):
        large = b"x: " + b"x" * (MOST_HEADER_BYTES // 2) + b"\r\n"
        for _ in range(4):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n" + large + b"\r\n")
            assert await status(reader) == "200 0"
            # between two requests nothing has to come
            await asyncio.sleep(SECONDS * 0.6)


async def test_nothing_has_to_come_behind_an_answer_for_longer_than_headers_may_take() -> None:
    async with connection() as (reader, writer):
        writer.write(GET)
        assert await status(reader) == "200 0"
        # longer than the limit, which is what is tested
        await asyncio.sleep(SECONDS * 1.5)
        writer.write(GET)
        assert await status(reader) == "200 0"


async def test_headers_may_be_as_large_as_the_bound() -> None:
    # a busy machine gets time: what is tested is their size
    async with connection(60) as (reader, writer):
        start = b"GET / HTTP/1.1\r\nx: "
        writer.write(start + b"x" * (MOST_HEADER_BYTES - len(start)))
        # it is read before the end comes
        await asyncio.sleep(SECONDS / 4)
        writer.write(b"\r\nhost: x\r\n\r\n")
        assert await status(reader) == "200 0"


async def test_the_answer_to_a_request_is_not_mixed_with_the_refusal_of_the_one_behind_it() -> None:
    async with connection() as (reader, writer):
        writer.write(
            b"GET /?%.1f HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nx: " % (SECONDS * 2) + b"x" * MOST_HEADER_BYTES
        )
        received = b""
        # what the server did not read any more makes a reset of its end
        with suppress(ConnectionResetError):
            async with asyncio.timeout(10):
                received = await reader.read()
        assert received == b""


async def test_nothing_comes_behind_the_last_answer_to_a_client_that_reads_slowly() -> None:
    async with connection() as (reader, writer):
        writer.write(b"GET /much HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        # longer than the headers behind it may take
        await asyncio.sleep(SECONDS * 1.5)
        received = b""
        with suppress(ConnectionResetError):
            async with asyncio.timeout(10):
                while part := await reader.read(1 << 20):
                    received += part
    assert head.startswith(b"HTTP/1.1 200")
    assert received.strip(b"x") == b""


async def test_a_connection_that_has_ended_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def noted(delay: float, *arguments: Any, **more: Any) -> asyncio.TimerHandle:
        handle = call_later(delay, *arguments, **more)
        if delay == 1234:
            timers.append(handle)
        return handle

    monkeypatch.setattr(loop, "call_later", noted)
    async with connection(1234) as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\n")
        async with asyncio.timeout(10):
            while len(timers) < 2:
                await asyncio.sleep(0.01)
    assert [timer.cancelled() for timer in timers] == [True, True]


async def test_a_body_and_an_answer_may_take_longer_than_headers() -> None:
    async with connection() as (reader, writer):
        writer.write(b"POST /?%.1f HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" % (SECONDS * 2))
        for _ in range(10):
            writer.write(b"x" * 10_000)
            await asyncio.sleep(SECONDS / 5)
        assert await status(reader) == "200 100000"


async def test_a_pipelined_request_with_slow_headers_lets_the_one_before_finish() -> None:
    async with connection() as (reader, writer):
        writer.write(b"GET /?%.1f HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n" % (SECONDS * 2))
        assert await status(reader) == "200 0"
        assert await status(reader) == "408"


async def test_a_connection_counts_as_long_as_it_is_open() -> None:
    noted = Noted()
    async with connection(60, noted) as (reader, writer):
        writer.write(GET)
        assert await status(reader) == "200 0"
        assert noted.published == [1]
        writer.close()
        async with asyncio.timeout(10):
            while noted.published != [1, 0]:
                await asyncio.sleep(0.01)


async def test_a_connection_that_becomes_a_websocket_counts_no_longer() -> None:
    noted = Noted()
    async with connection(60, noted) as (reader, writer):
        writer.write(
            b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 403")
        assert noted.published == [1, 0]
    assert noted.published == [1, 0]


@pytest.mark.parametrize("split", [0, 20, 60])
@pytest.mark.parametrize(
    "rest",
    [
        # as the HTTP client of Java's library sends the first request of a connection that is not encrypted
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEA\r\ncontent-length: 5\r\n\r\n12345",
        b"connection: upgrade\r\nupgrade: TLS/1.2\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
    ],
)
async def test_a_request_that_offers_another_protocol_is_read_to_its_end(rest: bytes, split: int) -> None:
    request = b"POST /?0.1 HTTP/1.1\r\nhost: x\r\n" + rest
    async with connection(60) as (reader, writer):
        writer.write(request[: len(request) - split])
        # so that the server reads two parts; in one, they would test less
        await asyncio.sleep(0.02)
        # and the next one of the connection, which comes before the answer
        writer.write(request[len(request) - split :] + request)
        assert await status(reader) == "200 5"
        assert await status(reader) == "200 5"


async def test_a_request_for_a_tunnel_that_offers_another_protocol_is_answered() -> None:
    async with connection(60) as (reader, writer):
        writer.write(b"CONNECT /x HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        assert await status(reader) == "200 0"
