"""Requests to the application."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import httpx
import pytest

from encoder_plugins.compatibility import PLUGIN_VERSION_HEADER, installed_plugins
from encoder_plugins.plugin import POOLING, Route
from encoder_plugins.serving import settings
from encoder_plugins.serving.graceful_shutdown import Drain
from encoder_plugins.serving.http.admission import Message
from encoder_plugins.serving.http.app import INLINE_BYTES, build
from encoder_plugins.serving.http.tests.fake_server import JSON, OTHER, Server, chunks, error
from encoder_plugins.serving.http.worker_counters import SingleProcess

# a request that is never answered would be waited for
pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("route", [POOLING, OTHER])
async def test_a_route_is_answered_by_the_processor_alone(route: Route) -> None:
    server = Server()
    response = await server.post(b"hello", path=route.path)
    assert (response.status_code, response.content) == (200, b"hello")
    assert response.headers["content-type"] == "text/x-test"
    assert (response.headers["x-route"], response.headers["content-length"]) == (route.schema, "5")
    # the client may use the connection again
    assert "connection" not in response.headers
    assert server.passed == []


@pytest.mark.parametrize("path", ["/v1/rerank", "/tokenize", "/invocations", "/docs", "/pooling/", "/", "/score"])
async def test_other_paths_do_not_exist(path: str) -> None:
    server = Server()
    response = await server.client.post(path, content=b"{}", headers=JSON)
    assert response.status_code == 404
    assert "/pooling" in error(response)["message"]
    assert server.passed == []


async def test_a_path_that_no_plugin_has_is_refused_with_all_that_there_are() -> None:
    response = await Server().client.post("/docs", content=b"{}", headers=JSON)
    paths = "/health, /metrics, /openapi.json, /pooling, /v1/embeddings, /v1/models, /version"
    assert error(response)["message"] == f"no such path; there is: {paths}"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/score"])
async def test_a_route_of_other_plugins_is_refused_with_those_that_there_are(path: str) -> None:
    server = Server()
    response = await server.client.post(path, content=b"{}", headers=JSON)
    assert (response.status_code, server.passed) == (404, [])
    assert f"does not answer {path}; use POST /pooling" in error(response)["message"]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version"])
async def test_what_probes_and_scrapers_need_is_vllms(path: str) -> None:
    server = Server()
    response = await server.client.get(path)
    assert response.status_code == 200
    assert server.passed == [path]
    # the one thing that is added
    plugins = installed_plugins() if path == "/version" else None
    assert response.headers.get(PLUGIN_VERSION_HEADER) == plugins


async def test_a_proxy_may_leave_its_prefix_in_front_of_a_path() -> None:
    server = Server()
    transport = httpx.ASGITransport(app=server.application, root_path="/svc")
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        for path in ("/pooling", "/svc/pooling", "/svc/v1/embeddings"):
            assert (await client.post(path, content=b"hello", headers=JSON)).status_code == 200
        for path in ("/svc/openapi.json", "/svc/health", "/health"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/openapi.json")).json()["servers"] == [{"url": "/svc"}]
        for path in ("/svcpooling", "/svc", "/other/pooling", "/svc/svc/pooling"):
            assert (await client.post(path, content=b"hello", headers=JSON)).status_code == 404
    # vLLM's application takes the prefix away itself
    assert server.passed == ["/svc/health", "/health"]


async def test_the_openapi_document_describes_the_routes() -> None:
    server = Server(in_flight=3)
    response = await server.client.get("/openapi.json")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    found = response.json()
    assert found["info"]["title"] == server.name
    assert "servers" not in found
    # the limits that this server was started with, which a client reads to split its requests
    assert found["x-encoder-limits"] == asdict(server.processor.limits)
    assert found["x-encoder-limits"]["in_flight"] == 3
    assert list(found["paths"]) == [POOLING.path, OTHER.path]
    operation = found["paths"][OTHER.path]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {"type": "integer"}
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {"type": "string"}


async def test_a_route_is_for_post_only() -> None:
    server = Server()
    # OPTIONS without the headers of a browser's question, too
    for method in ("GET", "PUT", "OPTIONS"):
        refused = await server.client.request(method, "/pooling")
        assert (error(refused)["code"], refused.headers["allow"]) == (405, "POST")
    assert server.passed == []


async def test_the_openapi_document_is_for_get_only() -> None:
    for method in ("HEAD", "POST"):
        refused = await Server().client.request(method, "/openapi.json")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


async def test_a_server_is_healthy_when_all_its_processes_listen() -> None:
    class Incomplete(SingleProcess):
        def complete(self) -> bool:
            return False

    response = await Server(Incomplete()).client.get("/health")
    assert (error(response)["code"], response.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("body", "status", "kind", "param"),
    [
        (b"bad", 400, "BadRequestError", "data.text"),
        (b"other", 404, "NotFoundError", "model"),
        (b"much", 400, "BadRequestError", "data.threshold"),
    ],
)
async def test_a_refused_request_names_its_field(body: bytes, status: int, kind: str, param: str) -> None:
    response = await Server().post(body)
    found = error(response)
    assert (found["code"], found["type"], found["param"]) == (status, kind, param)
    # the same request would be refused again
    assert "retry-after" not in response.headers
    assert found["message"].startswith(f"{param}: ")


async def test_a_request_that_fails_reveals_no_details_and_does_no_harm() -> None:
    server = Server()
    found = error(await server.post(b"broken"))
    assert (found["code"], found["type"]) == (500, "InternalServerError")
    assert "secret" not in found["message"]
    assert (await server.post(b"hello")).status_code == 200


async def test_a_request_that_would_be_answered_later_may_be_sent_again() -> None:
    response = await Server().post(b"later")
    assert (error(response)["code"], error(response)["param"]) == (503, "data.labels")
    assert response.headers["retry-after"] == "1"


async def test_a_request_that_a_dead_engine_fails_may_be_sent_again() -> None:
    server = Server()
    server.died = True
    response = await server.post(b"broken")
    assert (error(response)["type"], response.headers["retry-after"]) == ("ServiceUnavailableError", "1")


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-type": "text/plain"}, {"content-type": "application/json", "content-encoding": "gzip"}],
)
async def test_only_plain_json_is_taken(headers: dict[str, str]) -> None:
    assert error(await Server().post(b"hello", headers))["code"] == 415


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "Application/JSON; charset=utf-8"},
        JSON | {"content-encoding": "Identity"},
        JSON | {"content-encoding": ""},
    ],
)
async def test_plain_json_may_be_named_in_other_ways(headers: dict[str, str]) -> None:
    assert (await Server().post(b"hello", headers)).status_code == 200


async def test_a_large_body_is_refused_by_its_announced_length() -> None:
    server = Server(body_bytes=100)
    assert (await server.post(b"x" * 100)).status_code == 200
    assert "100 bytes" in error(await server.post(b"x" * 101))["message"]
    assert len(server.processor.threads) == 1


async def test_a_large_body_in_chunks_is_refused_while_it_comes_and_read_to_its_end() -> None:
    server = Server(body_bytes=100)
    assert (await server.post(chunks([b"x" * 50] * 2))).status_code == 200
    rest = chunks([b"x" * 50] * 5)
    assert error(await server.post(rest))["code"] == 413
    # a client that is cut off while it sends may never read the answer
    assert [part async for part in rest] == []


async def test_a_body_that_does_not_come_is_given_up() -> None:
    received = 0

    async def receive() -> Message:
        nonlocal received
        received += 1
        if received > 1:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"x", "more_body": True}

    server = Server(body_seconds=1)
    sent = await server.raw(receive)
    assert sent[0]["status"] == 408
    # nobody waits for the rest of it
    assert received == 2
    assert server.counters.total() == 0


async def test_small_bodies_are_parsed_on_the_event_loop_and_large_ones_in_a_thread() -> None:
    server = Server()
    await server.post(b"x" * INLINE_BYTES)
    await server.post(b"x" * (INLINE_BYTES + 1))
    # a tokenizer would hold the event loop for some ten milliseconds
    await server.post(b"x" * 20_000)
    own, *others = server.processor.threads
    assert own == threading.get_ident()
    assert own not in others


@pytest.mark.parametrize(("cores", "at_once"), [(1, 2), (3, 3)])
async def test_as_many_large_bodies_are_parsed_at_once_as_there_are_cores_and_two_at_least(
    cores: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encoder_plugins.serving.http.app.os.sched_getaffinity", {0: set(range(cores))}.__getitem__)
    server = Server()
    parse, begun, free = server.processor.parse, threading.Semaphore(0), threading.Event()

    def waiting(route: Route, body: bytes) -> tuple[Route, bytes]:
        begun.release()
        assert free.wait(30)
        return parse(route, body)

    monkeypatch.setattr(server.processor, "parse", waiting)
    requests = [asyncio.create_task(server.post(b"x" * (INLINE_BYTES + 1))) for _ in range(at_once + 2)]
    for _ in range(at_once):
        assert await asyncio.to_thread(begun.acquire, timeout=30)
    # no other one begins
    assert not await asyncio.to_thread(begun.acquire, timeout=0.1)
    free.set()
    assert [response.status_code for response in await asyncio.gather(*requests)] == [200] * len(requests)
    assert len(set(server.processor.threads)) == at_once


async def test_one_request_too_many_is_sent_away_until_another_has_ended() -> None:
    server = Server(in_flight=2)
    server.engine.open.clear()
    async with asyncio.TaskGroup() as tasks:
        first = [tasks.create_task(server.post(b"hello")) for _ in range(2)]
        for _ in first:
            await server.engine.waiting.acquire()
        assert (server.counted()["in_flight"], server.counters.total()) == (2, 2)
        rest = chunks([b"hello"] * 3)
        refused = await server.post(rest)
        assert [part async for part in rest] == []
        server.engine.open.set()
    assert [task.result().status_code for task in first] == [200, 200]
    assert refused.headers["retry-after"] == "1"
    assert error(refused)["type"] == "ServiceUnavailableError"
    assert (await server.post(b"hello")).status_code == 200


async def test_a_server_that_stops_is_not_quiet_while_it_refuses_requests() -> None:
    server = Server(in_flight=1)
    # those in flight are another process's
    server.counters.publish(1)
    server.application._drain = Drain(quiet=0.8)
    waiting = asyncio.create_task(server.application._drain.quiet())
    for _ in range(12):
        assert (await server.post(b"hello")).status_code == 503
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
    await asyncio.wait_for(waiting, 10)


@pytest.mark.parametrize("body", [b"bad", b"broken", b"hello"])
async def test_a_request_that_has_ended_is_no_longer_in_flight(body: bytes) -> None:
    server = Server(in_flight=1)
    for _ in range(3):
        assert (await server.post(body)).status_code != 503
    assert (server.counters.total(), server.counted().get("in_flight", 0)) == (0, 0)


async def test_a_client_that_disconnects_ends_its_work() -> None:
    server = Server()
    server.engine.open.clear()
    for _ in range(300):
        assert await server.disconnected() == []
    assert (server.engine.encoding, server.counters.total()) == (0, 0)
    assert server.counted() == {"requests_total": 300, "cancelled_total": 300, "in_flight_limit": 128}
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_client_that_disconnects_while_it_sends_is_not_an_error() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    server = Server()
    assert await server.raw(receive) == []
    assert (server.counters.total(), server.counted()["cancelled_total"]) == (0, 1)


async def test_the_end_of_the_server_is_not_taken_for_a_disconnect() -> None:
    server = Server()
    server.engine.open.clear()
    task = asyncio.create_task(server.post(b"hello"))
    await server.engine.waiting.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.counters.total() == 0


def test_a_server_that_was_started_in_another_way_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.VARIABLE, raising=False)
    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(RuntimeError, match="start the server with `encoder-plugins serve`"),
    ):
        build(None, threads)


async def test_a_websocket_is_closed() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    await Server().application({"type": "websocket", "path": "/pooling"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_stopping_server_answers_and_sends_its_clients_away() -> None:
    server = Server()
    server.application._drain.stopping = True
    for content, status in ((b"hello", 200), (b"bad", 400)):
        response = await server.post(content)
        assert (response.status_code, response.headers["connection"]) == (status, "close")


async def test_a_request_that_came_before_the_stop_sends_its_client_away() -> None:
    server = Server()
    server.engine.open.clear()
    request = asyncio.create_task(server.post(b"hello"))
    await server.engine.waiting.acquire()
    server.application._drain.stopping = True
    server.engine.open.set()
    assert (await request).headers["connection"] == "close"


async def test_every_request_and_refusal_is_counted() -> None:
    server = Server(body_bytes=20, in_flight=7)
    for body in (b"12345", b"bad", b"other", b"broken", b"x" * 21):
        await server.post(body)
    await server.post(b"x", headers={"content-type": "text/plain"})
    await server.client.get("/health")
    assert server.counted() == {
        "requests_total": 6, "in_flight_limit": 7, "rejected_totalinvalid": 1, "rejected_totalunknown_model": 1,
        "rejected_totalfailed": 1, "rejected_totaltoo_large": 1, "rejected_totalcontent_type": 1,
    }  # fmt: skip


async def test_headers_that_came_at_once_have_the_same_limit() -> None:
    response = await Server().post(b"hello", {**JSON, "x": "y" * 70_000})
    assert (response.status_code, error(response)["param"]) == (431, "headers")
