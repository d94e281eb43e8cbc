"""A real server under clients that are slow, rude, or gone, and at its own end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from encoder_plugins.serving.tests.servers import JSON, Server, minilm, running, starting
from encoder_plugins.serving.tests.trace_collector import Collector, attributes, collecting

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

# aborted requests, and those after which allocators and caches have settled
SOME, MANY, SETTLED = 300, 10_000, 60
# a request that takes the engine seconds
LONG = {"data": {"texts": ["word " * 250] * 32}}
MOST_GROWTH = 192 << 20
# of three requests; ten times as many where the C library gives back to the system what a step used
MOST_FAULTS = 30_000
KEY = {"authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return minilm(tmp_path_factory.mktemp("artifacts") / "minilm")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as started:
        yield started


@pytest.fixture(scope="module")
def server(prepared: Path, collector: Collector) -> Iterator[Server]:
    arguments = ["--limit", "header_seconds=2", "--limit", "body_seconds=3"]
    vllm = ["--api-key", "secret", "--allowed-origins", '["http://page"]', "--otlp-traces-endpoint", collector.url]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        with running(prepared, *arguments, "--", *vllm) as started:
            yield replace(started, headers=KEY)


def resident_bytes(server: Server) -> int:
    """The memory of the process that parses and answers."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def page_faults(server: Server) -> int:
    """How often the server's processes were given a page by the system."""
    found = subprocess.run(["pgrep", "-g", str(server.process.pid)], capture_output=True, text=True, check=True)
    return sum(
        int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[7]) for process in found.stdout.split()
    )


def engine_of(server: Server) -> int:
    """The engine's process."""
    (engine,) = engines_of(server)
    return engine


def engines_of(server: Server) -> list[int]:
    """The engine's process; none before it is started."""
    found = subprocess.run(["pgrep", "-P", str(server.process.pid), "-f", "EngineCore"], capture_output=True)
    return list(map(int, found.stdout.split()))


def nothing_in_flight(server: Server) -> bool:
    ours, engine = server.metrics("encoder_serving_"), server.metrics("vllm:num_requests_")
    return ours["in_flight"] == 0 and engine["running"] == engine["waiting"] == 0


async def abort(server: Server, count: int) -> None:
    """Begin so many requests, and close each connection before its answer."""
    address = httpx.URL(server.url)
    body = b'{"data": {"texts": [' + b", ".join([b'"' + b"word " * 200 + b'"'] * 4) + b"]}}"
    head = b"POST /pooling HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    head += b"authorization: %s\r\n\r\n" % KEY["authorization"].encode()

    async def one(number: int) -> None:
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(head % len(body) + body)
        await writer.drain()
        # some before the body is parsed, some while the engine has them
        await asyncio.sleep(0.01 * (number % 5))
        writer.close()
        await writer.wait_closed()

    for start in range(0, count, 20):
        await asyncio.gather(*(one(number) for number in range(start, start + 20)))


def aborted_requests_leave_nothing(server: Server, count: int) -> None:
    asyncio.run(abort(server, SETTLED))
    before = resident_bytes(server)
    cancelled = server.metrics("encoder_serving_")["cancelled_total"]
    asyncio.run(abort(server, count))
    end = time.monotonic() + 60
    while not nothing_in_flight(server):
        assert time.monotonic() < end, server.metrics("encoder_serving_")
    assert server.metrics("encoder_serving_")["cancelled_total"] > cancelled
    assert resident_bytes(server) - before < MOST_GROWTH
    assert server.answer(text="still there")["dimensions"] == 384


def test_aborted_requests_leave_memory_and_queues_as_they_were(server: Server) -> None:
    aborted_requests_leave_nothing(server, SOME)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_aborted_requests_leave_memory_and_queues_as_they_were(server: Server) -> None:
    aborted_requests_leave_nothing(server, MANY)


def test_the_engine_is_forked_and_does_not_import_vllm_again(server: Server) -> None:
    # the kernel gives each program that starts other addresses, which a forked process keeps
    ours, engine = (Path(f"/proc/{process}/auxv").read_bytes() for process in (server.process.pid, engine_of(server)))
    assert ours == engine


def test_headers_that_do_not_end_close_the_connection(server: Server) -> None:
    address = httpx.URL(server.url)
    slow = [socket.create_connection((address.host, address.port or 80), timeout=30) for _ in range(20)]
    # some of them silent, some with a line now and then
    talking = slow[::2]
    for connection in slow:
        connection.settimeout(0.1)
    for connection in talking:
        connection.sendall(b"POST /pooling HTTP/1.1\r\n")
    begin = time.monotonic()
    answers: dict[socket.socket, bytes] = {}
    while len(answers) < len(slow):
        assert time.monotonic() - begin < 60
        for connection in slow:
            if connection not in answers:
                with contextlib.suppress(TimeoutError):
                    answers[connection] = connection.recv(100)
        for connection in talking:
            if connection not in answers:
                with contextlib.suppress(OSError):
                    connection.sendall(b"x-line: x\r\n")
    assert {answer[:12] for answer in answers.values()} == {b"HTTP/1.1 408"}
    for connection in slow:
        connection.close()


def test_headers_without_end_are_refused(server: Server) -> None:
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 80), timeout=30) as connection:
        connection.sendall(b"POST /pooling HTTP/1.1\r\nx: " + b"x" * 200_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431")


def test_a_connection_may_wait_between_two_requests(server: Server) -> None:
    with httpx.Client(timeout=60, headers=KEY) as client:
        assert client.post(f"{server.url}/pooling", json={"data": {"text": "a"}}).status_code == 200
        # longer than headers may take
        time.sleep(3)
        assert client.post(f"{server.url}/pooling", json={"data": {"text": "a"}}).status_code == 200


async def test_a_body_that_does_not_come_is_given_up(server: Server) -> None:
    async def stalled() -> AsyncIterator[bytes]:
        yield b"{"
        # longer than a body may take
        await asyncio.sleep(6)

    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(f"{server.url}/pooling", content=stalled(), headers=JSON | KEY)
    assert response.status_code == 408


def test_every_route_is_guarded_by_the_key(server: Server) -> None:
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/pooling", {"data": {"text": "a"}})):
        assert httpx.post(server.url + path, json=body, timeout=60).status_code == 401
        assert server.post(body, path, authorization="Bearer another").status_code == 401
        assert server.post(body, path).status_code == 200


def test_a_request_and_its_prompts_are_spans_of_the_callers_trace(server: Server, collector: Collector) -> None:
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    texts = ["a", "two words", "and three words"]
    answer = server.post({"data": {"texts": texts}}, traceparent=f"00-{trace}-{caller}-01")
    assert answer.status_code == 200
    # the texts share a prompt
    spans = collector.trace(trace, 2)
    (ours,) = (span for span in spans if span.name == "POST /pooling")
    assert ours.parent_span_id.hex() == caller
    found = attributes(ours)
    assert (found["url.path"], found["http.response.status_code"]) == ("/pooling", 200)
    (prompt,) = (span for span in spans if span is not ours)
    assert (prompt.name, prompt.parent_span_id) == ("llm_request", ours.span_id)
    # each text with its class and separator tokens
    assert attributes(prompt)["gen_ai.usage.prompt_tokens"] == 3 + 4 + 5
    assert found["encoder.prompt_tokens"] == 3 + 4 + 5


def test_a_browser_may_send_requests_from_an_allowed_origin(server: Server) -> None:
    headers = {"origin": "http://page", "access-control-request-method": "POST"}
    response = httpx.options(f"{server.url}/pooling", headers=headers, timeout=60)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "http://page")
    answer = server.post({"data": {"text": "a"}}, origin="http://page")
    assert answer.headers["access-control-allow-origin"] == "http://page"
    other = server.post({"data": {"text": "a"}}, origin="http://other")
    assert "access-control-allow-origin" not in other.headers


def test_what_a_step_needs_is_kept_for_the_next(server: Server) -> None:
    for _ in range(3):
        assert server.post(LONG).status_code == 200
    before = page_faults(server)
    for _ in range(3):
        assert server.post(LONG).status_code == 200
    assert page_faults(server) - before < MOST_FAULTS


def test_too_many_are_sent_away_and_a_server_whose_engine_dies_ends_with_a_failure(prepared: Path) -> None:
    with running(prepared, "--max-in-flight", "2") as small, ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(small.post, [LONG] * 6))
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 0 < len(refused) <= 4
        assert {(answer.status_code, answer.headers["retry-after"]) for answer in refused} == {(503, "1")}
        flying = clients.submit(small.post, LONG)
        while nothing_in_flight(small):
            time.sleep(0.02)
        os.kill(engine_of(small), signal.SIGKILL)
        assert flying.result().status_code == 503
        assert small.process.wait(60) not in (0, None)


def test_a_server_whose_engine_still_loads_the_model_ends_on_a_signal(prepared: Path) -> None:
    """A pod that is deleted while it starts gives its GPU back before the end of its grace period."""
    with starting(prepared) as server:
        while not (engines := engines_of(server)):
            assert server.process.poll() is None
            time.sleep(0.02)
        server.process.terminate()
        assert server.process.wait(30) == 128 + signal.SIGTERM
    assert not any(Path(f"/proc/{engine}").exists() for engine in engines)


def test_a_stop_loses_no_request(server: Server) -> None:
    """The last test of the server that all share: Ctrl-C, which reaches the engine's process too, lets requests in flight finish, as SIGTERM does."""
    with ThreadPoolExecutor(2) as clients:
        flying = [clients.submit(server.post, LONG) for _ in range(2)]
        while server.metrics("encoder_serving_")["in_flight"] < 2:
            assert not any(task.done() for task in flying)
        os.killpg(server.process.pid, signal.SIGINT)
        assert [task.result().status_code for task in flying] == [200, 200]
    assert server.process.wait(60) == 0
