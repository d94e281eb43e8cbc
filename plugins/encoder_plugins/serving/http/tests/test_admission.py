"""The door, in front of an application that notes what reaches it."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest
from prometheus_client import REGISTRY

from encoder_plugins.errors import InvalidRequest, UnknownModel
from encoder_plugins.serving.http.admission import Door, Message, Receive, Scope, Send
from encoder_plugins.serving.limits import Limits


class Admitted(NamedTuple):
    """What the processor's module calls so; it brings vLLM."""

    body: dict[str, Any]
    tokens: int


JSON = {"content-type": "application/json"}


class ProcessorFake:
    """Admits every body but two, and remembers which were given back."""

    def __init__(self, limits: Limits) -> None:
        # a name of its own, since counters are the process's
        self.settings = SimpleNamespace(plugin=secrets.token_hex(4), limits=limits, census=None)
        self.discarded: list[Any] = []

    def admit(self, body: bytes) -> Admitted:
        if body == b"bad":
            raise InvalidRequest("it is bad", param="data.text")
        if body == b"other":
            raise UnknownModel("it is another", param="model")
        return Admitted({"model": "m", "data": {"ticket": body.decode()}}, len(body))

    def discard(self, admitted: dict[str, Any]) -> None:
        self.discarded.append(admitted["data"]["ticket"])


class ApplicationFake:
    """Stands for vLLM: answers with the body it got, when it is let."""

    def __init__(self, limits: Limits) -> None:
        self.processor = ProcessorFake(limits)
        serving = SimpleNamespace(io_processors={"plugin": SimpleNamespace(io_processor=self.processor)})
        self.state = SimpleNamespace(serving_pooling=serving)
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = asyncio.Semaphore(0)
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        body = (await receive())["body"] if scope["method"] == "POST" else b"{}"
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        assert scope["method"] != "POST" or lengths == [str(len(body)).encode()]
        self.waiting.release()
        await self.open.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


class Serving:
    """A client in front of a door with given limits."""

    def __init__(self, **limits: int) -> None:
        self.application = ApplicationFake(Limits.model_validate(limits))
        self.door = Door(self.application)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self.door({**scope, "app": self.application}, receive, send)

        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door")

    async def post(self, content: bytes | AsyncIterator[bytes], headers: dict[str, str] = JSON) -> httpx.Response:
        return await self.client.post("/pooling", content=content, headers=headers)


def error(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    assert found["code"] == response.status_code
    return found


async def chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_vllm_gets_the_ticket_instead_of_the_body() -> None:
    serving = Serving()
    response = await serving.post(b"hello")
    assert response.json() == {"model": "m", "data": {"ticket": "hello"}}
    assert serving.application.processor.discarded == ["hello"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/invocations", "/docs", "/pooling/", "/", "/score"])
async def test_other_paths_do_not_exist(path: str) -> None:
    serving = Serving()
    response = await serving.client.post(path, content=b"{}", headers=JSON)
    assert response.status_code == 404
    assert "/pooling" in error(response)["message"]
    assert serving.application.paths == []


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version"])
async def test_what_probes_and_scrapers_need_passes(path: str) -> None:
    assert (await Serving().client.get(path)).status_code == 200


async def test_a_refused_request_names_its_field() -> None:
    response = await Serving().post(b"bad")
    assert error(response) == {
        "message": "data.text: it is bad",
        "type": "BadRequestError",
        "param": "data.text",
        "code": 400,
    }


async def test_an_unknown_model_is_not_found() -> None:
    assert error(await Serving().post(b"other"))["type"] == "NotFoundError"


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-type": "text/plain"}, {"content-type": "application/json", "content-encoding": "gzip"}],
)
async def test_only_plain_json_is_taken(headers: dict[str, str]) -> None:
    assert error(await Serving().post(b"hello", headers))["code"] == 415


async def test_a_content_type_may_have_a_charset() -> None:
    response = await Serving().post(b"hello", {"content-type": "Application/JSON; charset=utf-8"})
    assert response.status_code == 200


async def test_a_large_body_is_refused_by_its_announced_length() -> None:
    serving = Serving(body_bytes=100)
    assert (await serving.post(b"x" * 100)).status_code == 200
    assert "100 bytes" in error(await serving.post(b"x" * 101))["message"]


async def test_a_large_body_in_chunks_is_refused_while_it_comes() -> None:
    serving = Serving(body_bytes=100)
    assert (await serving.post(chunks([b"x" * 50] * 2))).status_code == 200
    assert error(await serving.post(chunks([b"x" * 50] * 3)))["code"] == 413


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async def stalled() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async def receive() -> Message:
        part = await anext(parts)
        return {"type": "http.request", "body": part, "more_body": True}

    parts = stalled()
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    application = ApplicationFake(Limits(body_seconds=1))
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "path": "/pooling", "method": "POST", "headers": headers, "app": application}
    await Door(application)(scope, receive, send)
    assert sent[0]["status"] == 408


async def test_one_request_too_many_is_told_to_come_back() -> None:
    serving = Serving(in_flight=2)
    serving.application.open.clear()
    async with asyncio.TaskGroup() as tasks:
        first = [tasks.create_task(serving.post(b"hello")) for _ in range(2)]
        for _ in first:
            await serving.application.waiting.acquire()
        refused = await serving.post(b"hello")
        serving.application.open.set()
    assert [task.result().status_code for task in first] == [200, 200]
    assert refused.headers["retry-after"] == "1"
    assert error(refused)["type"] == "ServiceUnavailableError"
    assert (await serving.post(b"hello")).status_code == 200


async def test_a_request_that_failed_gives_its_place_back() -> None:
    serving = Serving(in_flight=1)
    for _ in range(3):
        assert (await serving.post(b"bad")).status_code == 400
    assert json.loads((await serving.post(b"hello")).content)["model"] == "m"


async def test_a_websocket_is_closed() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    await Door(ApplicationFake(Limits()))({"type": "websocket", "path": "/pooling"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_stopping_server_answers_and_sends_its_clients_away() -> None:
    serving = Serving()
    serving.door._drain.stopping = True
    for content, status in ((b"hello", 200), (b"bad", 400)):
        response = await serving.post(content)
        assert (response.status_code, response.headers["connection"]) == (status, "close")


def counted(serving: Serving) -> dict[str, float]:
    """The page's numbers of this server, without their prefix."""
    plugin = serving.application.processor.settings.plugin
    return {
        sample.name.removeprefix("encoder_serving_")
        + "".join(f" {sample.labels[key]}" for key in ("reason",) if key in sample.labels): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.labels.get("plugin") == plugin and not sample.name.endswith("_created")
    }


async def test_every_request_and_refusal_is_counted() -> None:
    serving = Serving(body_bytes=20, in_flight=7)
    await serving.post(b"12345")
    await serving.post(b"123")
    await serving.post(b"bad")
    await serving.post(b"other")
    await serving.post(b"x" * 21)
    await serving.post(b"x", headers={"content-type": "text/plain"})
    await serving.client.get("/health")
    assert counted(serving) == {
        "requests_total": 6, "tokens_total": 8, "in_flight": 0, "in_flight_limit": 7,
        "rejected_total invalid": 1, "rejected_total unknown_model": 1, "rejected_total too_large": 1,
        "rejected_total content_type": 1, "rejected_total overloaded": 0, "rejected_total slow_body": 0,
    }  # fmt: skip


async def test_requests_at_work_are_counted_and_the_one_too_many_is_told() -> None:
    serving = Serving(in_flight=2)
    serving.application.open.clear()
    working = [asyncio.create_task(serving.post(b"1")) for _ in range(2)]
    for _ in working:
        await serving.application.waiting.acquire()
    assert counted(serving)["in_flight"] == 2
    assert (await serving.post(b"1")).status_code == 503
    assert counted(serving)["rejected_total overloaded"] == 1
    serving.application.open.set()
    await asyncio.gather(*working)
    assert counted(serving)["in_flight"] == 0
