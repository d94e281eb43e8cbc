"""OpenTelemetry spans: one for each request, below its client's (``traceparent``), with the engine's spans below it.

Where vLLM is given ``--otlp-traces-endpoint``, it makes the exporter in each process that has an engine client, and a span
``llm_request`` for each prompt. A request of ours can have many prompts; this module is what holds them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from encoder_plugins.serving.http.admission import Scope

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# a caller's position in its trace, by W3C Trace Context
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})


class Outcome:
    """How a request ended, for its span."""

    def __init__(self, span: Span | None) -> None:
        self._span = span

    def answered(self, status: int, prompt_tokens: int = 0) -> None:
        """Note the status of the response, and the tokens that the engine read for it."""
        if self._span is None:
            return
        self._span.set_attributes({"http.response.status_code": status, "encoder.prompt_tokens": prompt_tokens})
        if status >= 500:
            self._failed(str(status))

    def cancelled(self) -> None:
        """Note that the client has gone."""
        if self._span is not None:
            self._failed("client_disconnected")

    def _failed(self, kind: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        assert self._span is not None
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))


class Tracing:
    """The spans of a server's requests; without an exporter there are none, and a request pays for one comparison."""

    def __init__(self, plugin: str = "", *, enabled: bool = False) -> None:
        """Make spans of this plugin's requests.

        Args:
            plugin: Its name.
            enabled: Whether vLLM has made an exporter in this process.
        """
        self._tracer: Any = None
        self._plugin = plugin
        if enabled:
            from opentelemetry import trace

            self._tracer = trace.get_tracer("encoder_plugins.serving")

    @contextmanager
    def request(self, scope: Scope) -> Iterator[Outcome]:
        """Have a span for as long as the block runs; the block reports the outcome of the request to what it gets."""
        if self._tracer is None:
            yield Outcome(None)
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"] if name in TRACE_HEADERS
        }
        method, path = scope["method"], scope["path"]
        with self._tracer.start_as_current_span(
            f"{method} {path}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path, "encoder.plugin": self._plugin},
        ) as span:
            yield Outcome(span)

    @property
    def headers(self) -> Callable[[], Mapping[str, str] | None]:
        """A function that returns the trace headers of the request that calls it; None where there are no spans."""
        return _nothing if self._tracer is None else _current


def _nothing() -> None:
    return None


def _current() -> Mapping[str, str]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier
