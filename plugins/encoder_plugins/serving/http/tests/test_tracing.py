"""The span of a request, as an exporter in the same process sees it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from encoder_plugins.serving.http import tracing
from encoder_plugins.serving.http.tests.fake_server import JSON, Server
from encoder_plugins.serving.http.tracing import Tracing

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced(Server):
    """A server whose spans stay in this process."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        spans = Tracing("a_plugin")
        spans._tracer = provider.get_tracer("a test")  # vLLM's provider is the process's, which can be set once
        self.headers = spans.headers
        super().__init__(tracing=spans)

    async def span(self, body: bytes, **headers: str) -> Any:
        await self.client.post("/pooling", content=body, headers=JSON | headers)
        (span,) = self.exporter.get_finished_spans()
        return span


@pytest.mark.parametrize(
    ("body", "status", "failed"), [(b"hello", 200, False), (b"bad", 400, False), (b"broken", 500, True)]
)
async def test_a_request_is_a_span_below_its_clients(body: bytes, status: int, failed: bool) -> None:
    span = await Traced().span(body, traceparent=f"00-{TRACE}-{CALLER}-01", tracestate="vendor=1")
    assert (span.name, span.kind) == ("POST /pooling", SpanKind.SERVER)
    assert (f"{span.context.trace_id:x}".zfill(32), f"{span.parent.span_id:x}") == (TRACE, CALLER)
    assert span.context.trace_state.get("vendor") == "1"
    wanted = {"http.request.method": "POST", "url.path": "/pooling", "http.response.status_code": status}
    assert wanted.items() <= span.attributes.items()
    assert span.attributes["encoder.plugin"] == "a_plugin"
    assert span.status.is_ok is not failed
    assert span.attributes.get("error.type") == ("500" if failed else None)


@pytest.mark.parametrize("header", ["", "00-nothing-01", f"00-{'0' * 32}-{CALLER}-01", "ff" * 40])
async def test_a_caller_without_a_readable_trace_begins_one(header: str) -> None:
    span = await Traced().span(b"hello", traceparent=header)
    assert span.parent is None
    assert span.attributes["http.response.status_code"] == 200


async def test_what_the_caller_does_not_sample_is_not_exported() -> None:
    server = Traced()
    await server.client.post("/pooling", content=b"hello", headers=JSON | {"traceparent": f"00-{TRACE}-{CALLER}-00"})
    assert server.exporter.get_finished_spans() == ()


async def test_a_client_that_leaves_ends_its_span_as_an_error() -> None:
    server = Traced()
    server.engine.open.clear()
    assert await server.disconnected() == []
    span: Any
    (span,) = server.exporter.get_finished_spans()
    assert (span.status.is_ok, span.attributes["error.type"]) == (False, "client_disconnected")


async def test_the_engine_gets_the_position_of_the_request_that_calls_it() -> None:
    server = Traced()
    seen: list[Any] = []
    encode = server.engine.encode

    async def noting(*arguments: Any, **more: Any) -> Any:
        # as tasks of a request do, which run beside those of others
        seen.append(await asyncio.create_task(_called(server.headers)))
        return await encode(*arguments, **more)

    server.engine.encode = noting  # type: ignore[method-assign]
    await asyncio.gather(*(server.client.post("/pooling", content=b"hello", headers=JSON) for _ in range(3)))
    spans = {f"00-{s.context.trace_id:032x}-{s.context.span_id:016x}" for s in server.exporter.get_finished_spans()}
    assert len(spans) == 3
    # what follows are flags
    assert {each["traceparent"][:-3] for each in seen} == spans


async def _called(headers: Any) -> Any:
    return headers()


@pytest.fixture
def no_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail whatever imports it."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)


@pytest.mark.usefixtures("no_opentelemetry")
async def test_without_an_exporter_nothing_is_imported() -> None:
    server = Server()
    assert (await server.post(b"hello", path="/pooling")).status_code == 200
    assert tracing.Tracing().headers() is None
