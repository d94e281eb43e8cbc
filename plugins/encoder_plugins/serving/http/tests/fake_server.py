"""An application with a processor and an engine that a test controls."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import httpx
from prometheus_client import REGISTRY

from encoder_plugins import catalog
from encoder_plugins.errors import InvalidRequest, Overloaded, UnknownModel
from encoder_plugins.plugin import POOLING, REQUEST_LIMITS, Route
from encoder_plugins.serving.http.admission import Message, Receive, Scope, Send
from encoder_plugins.serving.http.app import Application, Serving
from encoder_plugins.serving.http.metrics import Counts
from encoder_plugins.serving.http.tracing import Tracing
from encoder_plugins.serving.http.worker_counters import SingleProcess
from encoder_plugins.serving.limits import RequestLimits
from encoder_plugins.serving.processor import Engine, Part, Prompt, Response, Schema

JSON = {"content-type": "application/json"}
OTHER = Route(path="/v1/embeddings", schema="openai", summary="Another route.")


class FakeEngine:
    """Answers when it is let, and knows how many wait for it."""

    concurrent = True

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = asyncio.Semaphore(0)
        self.encoding = 0

    async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[Any]:
        self.encoding += 1
        self.waiting.release()
        try:
            await self.open.wait()
        finally:
            self.encoding -= 1
        return []

    async def encode_parts(self, parts: Sequence[Part], *, lora: str | None = None) -> list[Any]:
        return await self.encode([prompt for part in parts for prompt in part.make()], lora=lora)

    async def compute(self, function: Callable[..., Any], *arguments: object, size: int, threads: Any = None) -> Any:
        return function(*arguments)


class FakeProcessor:
    """Repeats the body with the process's number, and notes in which thread it was parsed; some bodies fail in their own ways."""

    schemas: ClassVar[Mapping[str, Schema]] = {"pooling": Schema(str, int), "openai": Schema(int, str)}

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.threads: list[int] = []

    def parse(self, route: Route, body: bytes) -> tuple[Route, bytes]:
        self.threads.append(threading.get_ident())
        if body == b"bad":
            raise InvalidRequest("it is bad", param="data.text")
        if body == b"other":
            raise UnknownModel("it is another", param="model")
        if body == b"later":
            raise Overloaded("too many of this kind", param="data.labels")
        return route, body

    async def run(self, request: tuple[Route, bytes], engine: Engine) -> Response:
        await engine.encode([])
        route, body = request
        if body == b"much":
            raise InvalidRequest("the answer is too large", param="data.threshold")
        if body == b"broken":
            raise RuntimeError("secret detail")
        return Response(
            body=body, media_type="text/x-test", headers={"x-route": route.schema, "x-process": str(os.getpid())}
        )


class Counters(SingleProcess):
    """Knows whether the process has reported that it listens."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = False

    def open(self) -> None:
        self.opened = True


class Server:
    """An application with given limits, and a client in front of it."""

    def __init__(self, counters: Any = None, tracing: Tracing | None = None, **limits: int) -> None:
        values = {limit.name: limit.default for limit in REQUEST_LIMITS} | limits
        self.processor = FakeProcessor(RequestLimits(**values))
        self.engine = FakeEngine()
        self.passed: list[str] = []
        self.died = False
        # a name of its own, since counters are the process's
        self.name = secrets.token_hex(4)
        self.counters = counters or Counters()
        plugin = replace(catalog.get("deberta_gliner"), name=self.name, routes=(POOLING, OTHER))
        counts = Counts(self.name, self.processor.limits.in_flight)
        self.application = Application(
            self.vllm,
            Serving(
                plugin=plugin,
                processor=self.processor,
                engine=self.engine,
                counts=counts,
                counters=self.counters,
                engine_died=lambda: self.died,
                tracing=tracing or Tracing(),
            ),
        )
        transport = httpx.ASGITransport(app=self.application)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://server")

    async def vllm(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stand for vLLM's application."""
        self.passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def post(
        self, content: bytes | AsyncIterator[bytes], headers: dict[str, str] = JSON, path: str = "/pooling"
    ) -> httpx.Response:
        return await self.client.post(path, content=content, headers=headers)

    async def raw(self, receive: Receive, path: str = "/pooling") -> list[Message]:
        """Serve one request without a client; return what was sent."""
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        await self.application({"type": "http", "path": path, "method": "POST", "headers": headers}, receive, send)
        return sent

    async def disconnected(self, content: bytes = b"hello") -> list[Message]:
        """Send a request, and close the connection when the engine has it."""
        messages = iter([{"type": "http.request", "body": content, "more_body": False}])

        async def receive() -> Message:
            if (message := next(messages, None)) is not None:
                return message
            await self.engine.waiting.acquire()
            return {"type": "http.disconnect"}

        return await self.raw(receive)

    def counted(self) -> dict[str, float]:
        """The page's numbers of this server, without their prefix."""
        return {
            sample.name.removeprefix("encoder_serving_") + sample.labels.get("reason", ""): sample.value
            for metric in REGISTRY.collect()
            for sample in metric.samples
            if sample.labels.get("plugin") == self.name and not sample.name.endswith("_created") and sample.value
        }


def error(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    assert found["code"] == response.status_code
    return found


async def chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
