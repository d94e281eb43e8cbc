"""Bounds how long, and how large, the headers of a request may be: uvicorn knows a limit for neither. Counts connections.

A client that sends a header line every few seconds keeps a connection for ever, and one that never ends its headers fills the memory.
The class below is uvicorn's own protocol with a timer, chosen through uvicorn's configuration.

A request that offers to go on in another protocol is answered in HTTP/1.1, as that permits. The HTTP client of Java's library offers HTTP/2
(``Upgrade: h2c``) where a connection is not encrypted, and httptools takes the body of such a request for the other protocol's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from encoder_plugins.serving.http.admission import MOST_HEADER_BYTES, Scope
from encoder_plugins.serving.http.balance import Connection, Connections

# the key among a scope's extensions
_CONNECTION = "encoder_plugins.connection"


def of(scope: Scope) -> Connection | None:
    """Return the connection on which a request came; None where another server than the one below is in front."""
    found: Connection | None = scope.get("extensions", {}).get(_CONNECTION, {}).get("own")
    return found


def protocol(seconds: float, connections: Connections) -> type[HttpToolsProtocol]:
    """Return a protocol whose connections have ``seconds`` for the headers of each request, and are counted in ``connections``.

    The time runs from the first byte of the request; before the first request, from the opening of the connection.
    """

    class BoundedHeaders(HttpToolsProtocol):
        _header_timer: asyncio.TimerHandle | None = None
        _header_bytes = 0
        _connection: Connection
        _received = b""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._connection = connections.open()
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._connection.end()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self) -> None:
            # another protocol has it from now on
            self._connection.end()
            super().handle_websocket_upgrade()

        def on_message_begin(self) -> None:
            self._stop_timer()
            self._start_timer()
            super().on_message_begin()
            self.scope["extensions"] = {_CONNECTION: {"own": self._connection}}

        def on_headers_complete(self) -> None:
            self._stop_timer()
            # the others are read again, without the offer
            if not self._offers_another_protocol():
                super().on_headers_complete()

        def on_message_complete(self) -> None:
            if not self._offers_another_protocol():
                super().on_message_complete()

        def data_received(self, data: bytes) -> None:
            self._received = data
            super().data_received(data)
            # an idle connection keeps no memory
            self._received = b""
            if self._header_timer is None or self.transport.is_closing():
                return
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES:
                self._end(b"431 Request Header Fields Too Large")

        def _offers_another_protocol(self) -> bool:
            offered = any(name == b"upgrade" for name, _ in self.headers)
            return offered and self.parser.should_upgrade() and not self._should_upgrade()

        def _unsupported_upgrade_warning(self) -> None:
            # uvicorn would read the body as the next request
            upgrade = sys.exception()
            if not isinstance(upgrade, HttpParserUpgrade) or not self._offers_another_protocol():
                return
            first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
            kept = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            rest = self._received[upgrade.args[0] :]
            self.parser = HttpRequestParser(self)
            # as uvicorn's
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.data_received(b"\r\n".join([first, *kept, b"", b""]) + rest)

        def _start_timer(self) -> None:
            self._header_bytes = 0
            self._header_timer = self.loop.call_later(seconds, self._time_is_up)

        def _stop_timer(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

        def _time_is_up(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                # a pipelined request; the one before it is still being answered
                self._start_timer()
            elif not self.transport.is_closing():
                self._end(b"408 Request Timeout")

        def _end(self, status: bytes) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    return BoundedHeaders
