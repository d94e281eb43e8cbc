"""An OpenTelemetry collector for tests: OTLP over HTTP, and the spans that came."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """The spans of a server, by the names that they have."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []

    def trace(self, trace_id: str, count: int) -> list[Any]:
        """Wait for so many spans of a trace, and return all that came."""
        end = time.monotonic() + 30
        while len(found := [span for span in self.spans if span.trace_id.hex() == trace_id]) < count:
            assert time.monotonic() < end, found
            time.sleep(0.05)
        return found


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes as plain values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    collector.spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield collector
        finally:
            server.shutdown()
