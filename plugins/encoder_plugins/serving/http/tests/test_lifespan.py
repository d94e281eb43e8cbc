"""The start of the application, what it is put behind, and the death of its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from encoder_plugins.serving.http import app as application
from encoder_plugins.serving.http.admission import Message, Receive, Scope, Send
from encoder_plugins.serving.http.app import Application, Serving
from encoder_plugins.serving.http.tests.fake_server import JSON, Server


class FakeVllm:
    """The state of vLLM's application, with an engine that may die."""

    def __init__(self, errored: bool) -> None:
        self.state = SimpleNamespace(
            engine_client=SimpleNamespace(errored=errored),
            server=SimpleNamespace(should_exit=False, config=SimpleNamespace(http_protocol_class=None)),
            args=SimpleNamespace(),
        )


async def lifespan(server: Server, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool]) -> None:
    """Start a server, wait for something, and end it."""
    monkeypatch.setattr(Application, "failed", False)
    monkeypatch.setattr(application, "build", lambda *_: server.application._serving)
    behind: list[tuple[Any, Any]] = []

    def guarded(app: Any, args: Any) -> Any:
        behind.append((app, args))
        return guard

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        """Stand for vLLM's checks of keys and origins."""

    monkeypatch.setattr(application, "guarded", guarded)
    taken_over: list[bool] = []
    monkeypatch.setattr(server.application._drain, "take_over", lambda: taken_over.append(True))
    monkeypatch.setattr(application, "WATCH_SECONDS", 0.01)
    switching: list[float] = []
    monkeypatch.setattr("encoder_plugins.serving.http.app.sys.setswitchinterval", switching.append)
    ended = asyncio.Event()

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        async with asyncio.timeout(10):
            while not until():
                await asyncio.sleep(0.01)
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
    assert switching == [application.SWITCH_SECONDS]
    assert server.counters.opened
    assert taken_over == [True]
    assert behind == [(server.application._answer_request, vllm.state.args)]
    assert server.application._answer is guard
    # what bounds the headers of every connection
    assert issubclass(vllm.state.server.config.http_protocol_class, HttpToolsProtocol)


async def test_a_dead_engine_ends_the_server_with_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = FakeVllm(errored=True)
    await lifespan(Server(), vllm, monkeypatch, lambda: vllm.state.server.should_exit)
    assert Application.failed


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
    await lifespan(server, vllm, monkeypatch, lambda: True)
    assert (Application.failed, vllm.state.server.should_exit) == (False, False)


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
    monkeypatch.setattr(Application, "failed", False)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    def build(*_: object) -> Serving:
        raise ValueError("no tokenizer")

    monkeypatch.setattr(application, "build", build)
    await Server().application({"type": "lifespan", "app": None}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "no tokenizer" in sent[0]["message"]
    assert Application.failed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keys", [None, ["first", "second"]])
async def test_routes_are_behind_vllms_keys_and_origins(keys: list[str] | None) -> None:
    server = Server()
    args = SimpleNamespace(
        allowed_origins=["http://allowed"],
        allow_credentials=False,
        allowed_methods=["POST"],
        allowed_headers=["authorization"],
        api_key=keys,
    )
    transport = httpx.ASGITransport(app=application.guarded(server.application, args))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        for key, allowed in ((None, not keys), ("wrong", not keys), ("second", True)):
            sent = JSON if key is None else {**JSON, "authorization": f"Bearer {key}"}
            response = await client.post("/v1/embeddings", content=b"hello", headers=sent)
            assert response.status_code == (200 if allowed else 401)
        for origin, status in (("http://allowed", 200), ("http://other", 400)):
            question = {"origin": origin, "access-control-request-method": "POST"}
            assert (await client.options("/pooling", headers=question)).status_code == status
