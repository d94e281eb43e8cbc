"""A web server over a folder that knows ranges, as any file server does, and faults by path."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class WebServer(ThreadingHTTPServer):
    """Serves files below `root`.

    Attributes:
        root: The folder.
        statuses: What is answered instead of a file: status and headers, by path.
        always: The same for every path.
        extra: Headers that are sent with each whole file.
        bodies: What is answered to a path that begins so.
        requests: Method, path and Range of each request.
        authorizations: The Authorization header of each request; None where it has none.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.statuses: dict[str, tuple[int, dict[str, str]]] = {}
        self.always: tuple[int, dict[str, str]] | None = None
        self.extra: dict[str, str] = {}
        self.bodies: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.authorizations: list[str | None] = []
        self.scheme = "http"

    @property
    def address(self) -> str:
        """What comes before a path."""
        return f"{self.scheme}://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def do_GET(self) -> None:
        # a proxy gets whole URLs
        path = unquote("/" + self.path.partition("://")[2].partition("/")[2] if "://" in self.path else self.path)
        self.server.requests.append((self.command, path, self.headers.get("Range", "")))
        self.server.authorizations.append(self.headers.get("Authorization"))
        if (answer := self.server.always or self.server.statuses.get(path)) is not None:
            status, headers = answer
            self._answer(status, b"", headers)
            return
        body = next((body for start, body in self.server.bodies.items() if path.startswith(start)), None)
        if body is not None:
            self._answer(200, body, {"Content-Type": "application/xml"})
            return
        file = self.server.root / path.lstrip("/")
        if not file.is_file():
            self._answer(404, b"", {})
            return
        content = file.read_bytes()
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if start >= len(content) and start:
            self._answer(416, b"", {})
        elif "Range" in self.headers:
            self._answer(206, content[start:], {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"})
        else:
            self._answer(200, content, self.server.extra)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        length = {} if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
        for name, value in (length | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@contextmanager
def running(root: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[WebServer]:
    """Run a server while the block lasts; with a certificate and its key, over TLS."""
    with WebServer(root) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            server.scheme = "https"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
