"""The start of the application, what it is put behind, and the death of its engine."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from encoder_plugins import catalog
from encoder_plugins.serving import settings
from encoder_plugins.serving.http import app as application
from encoder_plugins.serving.http.admission import Message, Receive, Scope, Send
from encoder_plugins.serving.http.app import Application, Serving
from encoder_plugins.serving.http.tests.fake_server import JSON, Server, error
from encoder_plugins.serving.http.worker_counters import SingleProcess
from encoder_plugins.serving.settings import Settings


class FakeVllm:
    """The state of vLLM's application, with an engine that may die."""

    def __init__(self, errored: bool) -> None:
        self.state = SimpleNamespace(
            engine_client=SimpleNamespace(errored=errored),
            server=SimpleNamespace(
                should_exit=False, force_exit=False, config=SimpleNamespace(http_protocol_class=None)
            ),
            args=SimpleNamespace(),
        )


async def lifespan(server: Server, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool]) -> None:
    """Start a server, wait for something, and end it."""
    monkeypatch.setattr(Application, "failed", False)
    serving = server.application._serving
    monkeypatch.setattr(application, "build", lambda *_: serving)
    stopping, server.application = server.application._drain.stopping, Application(server.vllm)
    server.application._drain.stopping = stopping
    behind: list[tuple[Any, Any]] = []

    def guarded(app: Any, args: Any) -> Any:
        behind.append((app, args))
        return guard

    guarding: list[str] = []

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        """Stand for vLLM's checks of keys and origins."""
        guarding.append(scope["path"])

    monkeypatch.setattr(application, "with_keys", guarded)
    monkeypatch.setattr(application, "with_origins", guarded)
    taken_over: list[Callable[[bool], None]] = []
    monkeypatch.setattr(server.application._drain, "take_over", taken_over.append)
    # a server without an engine is of no use for longer
    assert application.WATCH_SECONDS <= 5
    monkeypatch.setattr(application, "WATCH_SECONDS", 0.01)
    switching: list[float] = []
    monkeypatch.setattr("encoder_plugins.serving.http.app.sys.setswitchinterval", switching.append)
    threads: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    ended = asyncio.Event()

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        async with asyncio.timeout(10):
            while not until():
                await asyncio.sleep(0.01)
        await server.raw(receive)
        ended.set()
        assert (await receive())["type"] == "lifespan.shutdown"

    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Message:
        return {"type": next(messages)}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    server.application._app = inner
    await server.application({"type": "lifespan", "app": vllm}, receive, send)
    assert ended.is_set()
    # in less time than Python's own 5 ms
    assert switching == [application.SWITCH_SECONDS]
    assert 0 < application.SWITCH_SECONDS < 0.005
    assert threads == ([] if serving.plugin.takes_images else [1])
    assert server.counters.opened
    (end,) = taken_over
    end(True)
    assert (vllm.state.server.should_exit, vllm.state.server.force_exit) == (True, True)
    own = server.application
    assert behind == [(own._answer_request, vllm.state.args), (own._answer_own, vllm.state.args)]
    assert (own._answer, own._own) == (guard, guard)
    assert guarding == ["/pooling"]
    # what bounds the headers of every connection
    assert issubclass(vllm.state.server.config.http_protocol_class, HttpToolsProtocol)


async def test_a_dead_engine_ends_the_server_with_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = FakeVllm(errored=True)
    await lifespan(Server(), vllm, monkeypatch, lambda: vllm.state.server.should_exit)
    assert Application.failed


async def test_images_keep_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm, server = FakeVllm(errored=True), Server()
    serving = server.application._serving
    server.application._serving = replace(serving, plugin=replace(serving.plugin, limits=catalog.get("collfm2").limits))
    await lifespan(server, vllm, monkeypatch, lambda: vllm.state.server.should_exit)


async def test_a_dead_engine_is_a_failure_when_vllm_notices_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = FakeVllm(errored=False)

    def dies() -> bool:
        vllm.state.engine_client.errored = True
        return True

    monkeypatch.setattr(Application, "_watch_engine", AsyncMock())
    await lifespan(Server(), vllm, monkeypatch, dies)
    assert Application.failed


async def test_an_engine_that_ends_with_a_stopping_server_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm, server = FakeVllm(errored=True), Server()
    server.application._drain.stopping = True

    def watched() -> bool:
        assert not vllm.state.server.should_exit
        return server.application._watch is not None and server.application._watch.done()

    await lifespan(server, vllm, monkeypatch, watched)
    assert not Application.failed


@pytest.mark.timeout(30)
@pytest.mark.parametrize("stopping", [False, True])
async def test_requests_that_wait_for_an_engine_that_has_ended_are_answered(
    stopping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # vLLM leaves them without an answer, and then waits for their clients to go
    monkeypatch.setattr(Application, "failed", False)
    monkeypatch.setattr(application, "WATCH_SECONDS", 0.01)
    server, client = Server(), SimpleNamespace(errored=False)
    server.application._drain.stopping = stopping
    server.engine.open.clear()
    watch = asyncio.create_task(server.application._watch_engine(client, SimpleNamespace()))
    waiting = [asyncio.create_task(server.post(b"hello")) for _ in range(2)]
    for _ in waiting:
        await server.engine.waiting.acquire()
    client.errored = True
    for response in await asyncio.gather(*waiting):
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        ended = "the server was stopped before it had answered" if stopping else "the engine has died; the server ends"
        assert error(response)["message"] == ended
    await watch
    assert (server.engine.encoding, server.application._running, server.application._drain.in_flight) == (0, set(), 0)


@pytest.mark.parametrize("at_once", [False, True])
async def test_the_end_of_a_server_answers_what_is_still_in_flight(at_once: bool) -> None:
    server, vllm = Server(), FakeVllm(errored=False)
    server.engine.open.clear()
    waiting = asyncio.create_task(server.post(b"hello"))
    await server.engine.waiting.acquire()
    server.application._end(vllm, at_once)
    assert (await waiting).status_code == 503
    assert (vllm.state.server.should_exit, vllm.state.server.force_exit) == (True, at_once)
    assert server.engine.encoding == 0


async def test_a_server_that_ends_at_once_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr(Application, "_start", AsyncMock())
    server.application._app = Starlette()
    sent: list[Message] = []
    serving = asyncio.Event()

    async def receive() -> Message:
        if not sent:
            return {"type": "lifespan.startup"}
        serving.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    running = asyncio.create_task(
        server.application({"type": "lifespan", "app": FakeVllm(errored=False)}, receive, send)
    )
    await serving.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.failed"}]


async def test_label_sets_are_encoded_before_the_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    server, started, seen = Server(), list[Any](), list[bool]()

    async def start(engine: Any) -> list[str]:
        started.append(engine)
        return ["Label set a: 1 of 1 labels are encoded"]

    monkeypatch.setattr(server.processor, "start", start, raising=False)
    serving = server.application._serving
    server.application._serving = replace(serving, plugin=replace(serving.plugin, label_sets=True))

    def listens() -> bool:
        seen.append(started == [server.engine])
        return True

    lines: list[str] = []
    monkeypatch.setattr(application.vllm_logger, "info", lines.append)
    await lifespan(server, FakeVllm(errored=False), monkeypatch, listens)
    assert (seen, lines) == ([True], ["Label set a: 1 of 1 labels are encoded"])


async def test_a_server_that_cannot_start_says_so_and_its_process_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # a process begins like this
    assert Application.failed is False
    monkeypatch.setattr(Application, "failed", False)
    sent: list[Message] = []
    received: list[Message] = []

    async def send(message: Message) -> None:
        # ASGI allows an answer to a question only
        assert len(received) == 1
        sent.append(message)

    async def receive() -> Message:
        received.append({"type": "lifespan.startup"})
        return received[-1]

    def build(*_: object) -> Serving:
        raise ValueError("no tokenizer")

    monkeypatch.setattr(application, "build", build)
    await Server().application({"type": "lifespan", "app": None}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "no tokenizer" in sent[0]["message"]
    assert Application.failed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keys", [None, ["first", "second"]])
async def test_routes_are_behind_vllms_keys_origins_and_ids_of_requests(keys: list[str] | None) -> None:
    server = Server()
    args = SimpleNamespace(
        allowed_origins=["http://allowed"],
        allow_credentials=False,
        allowed_methods=["POST"],
        allowed_headers=["authorization"],
        api_key=keys,
        enable_request_id_headers=keys is not None,
    )
    server.application._answer = application.with_keys(server.application._answer_request, args)
    server.application._own = application.with_origins(server.application._answer_own, args)
    for key, allowed in ((None, not keys), ("wrong", not keys), ("second", True)):
        sent = {**JSON, "x-request-id": secrets.token_hex()}
        sent |= {"origin": "http://allowed"} if key is None else {"authorization": f"Bearer {key}"}
        for path in ("/v1/embeddings", "/pooling"):
            response = await server.client.post(path, content=b"hello", headers=sent)
            assert response.status_code == (200 if allowed else 401)
            # what browsers require of an answer that a page may read
            assert response.headers.get("access-control-allow-origin") == sent.get("origin")
            if "origin" in sent:
                exposed = response.headers["access-control-expose-headers"].split(", ")
                assert {"x-encoder-shape", "x-encoder-dtype", "x-encoder-rows", "retry-after"} <= set(exposed)
            assert response.headers.get("x-request-id") == (sent["x-request-id"] if keys else None)
            assert allowed or (error(response)["type"], response.headers["www-authenticate"]) == (
                "AuthenticationError",
                "Bearer",
            )
    for origin, named in (("http://allowed", "http://allowed"), ("http://other", None)):
        # a page reads the limits, and the message about a wrong path or method, with or without a key
        for path, status in (("/openapi.json", 200), ("/nothing", 404), ("/pooling", 405)):
            response = await server.client.get(path, headers={"origin": origin})
            assert (response.status_code, response.headers.get("access-control-allow-origin")) == (status, named)
    for origin, status in (("http://allowed", 200), ("http://other", 400)):
        question = {"origin": origin, "access-control-request-method": "POST"}
        for path in ("/pooling", "/openapi.json"):
            assert (await server.client.options(path, headers=question)).status_code == status
        # a browser sends this question by OPTIONS only
        assert (await server.client.get("/pooling", headers=question)).status_code == 405


# vLLM warns of itself when it is imported
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("endpoint", [None, "http://collector"])
def test_a_server_serves_what_its_settings_name_with_the_engine_of_vllm(
    endpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from encoder_plugins.serving import engine

    server = Server(in_flight=3)
    given = Settings(plugin=server.name, limits={"in_flight": 3})
    monkeypatch.setenv(settings.VARIABLE, msgspec.json.encode(given).decode())
    config = SimpleNamespace(
        observability_config=SimpleNamespace(otlp_traces_endpoint=endpoint),
        scheduler_config=SimpleNamespace(policy="priority", max_num_batched_tokens=1_000),
        device_config=SimpleNamespace(device_type="cpu"),
    )
    client = SimpleNamespace(vllm_config=config, errored=False)
    state = SimpleNamespace(engine_client=client, openai_serving_models=SimpleNamespace(lora_requests={"a": "lora a"}))
    built: list[Any] = []

    def build_from(*arguments: object) -> tuple[Any, Any]:
        built.append(arguments)
        return server.application._serving.plugin, server.processor

    monkeypatch.setattr(engine, "build_from", build_from)
    with ThreadPoolExecutor(1) as threads:
        found = application.build(SimpleNamespace(state=state), threads)
    assert built == [(config, given, frozenset({"a"}))]
    assert (found.plugin.name, found.processor) == (server.name, server.processor)
    assert isinstance(found.counters, SingleProcess)
    assert isinstance(found.engine, engine.AsyncEngine)
    # by which the engine computes a long request in larger parts
    alone = []
    for in_flight in (0, 1, 2):
        found.counters.publish(in_flight)
        alone.append(found.engine._is_alone())
    assert alone == [True, True, False]
    # spans cost time, and go nowhere without a collector
    assert (found.tracing.headers() is None) is (endpoint is None)
    assert found.engine_died() is False
    client.errored = True
    assert found.engine_died() is True
