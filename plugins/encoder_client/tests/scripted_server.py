"""A server whose answers a test decides: HTTP/1.1 on a socket of this machine, a thread for each connection."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

OPENAPI = Path(__file__).parents[3] / "docs" / "openapi"
MODELS = {
    "object": "list",
    "data": [
        {"id": "served", "object": "model", "parent": None, "max_model_len": 512},
        # a LoRA adapter, as vLLM lists it
        {"id": "legal", "object": "model", "parent": "served", "max_model_len": None},
    ],
}


@dataclass
class Reply:
    """What a request is answered; `drop` closes the connection instead."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Received:
    """A request."""

    path: str
    headers: Mapping[str, str]
    data: Any
    size: int
    # of the client, by which its connections differ
    port: int


Handler = Callable[[Any], Reply]


def refusal(status: int, message: str, param: str | None = None, **headers: str) -> Reply:
    """Return a refusal in the shape of the real server's."""
    message = f"{param}: {message}" if param else message
    return Reply(status, {"error": {"message": message, "type": "", "param": param, "code": status}}, headers)


def lower(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers by names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def numbered(text: str) -> list[float]:
    """Return the vector that the server has for a text."""
    return [float(len(text)), float(ord(text[0])), 1.0]


def vectors(data: Any) -> Reply:
    """Answer a request for vectors: of each text the numbers of `numbered`."""
    found = np.array([numbered(text) for text in data["texts"]], "<f4")
    headers = {"x-encoder-shape": ",".join(map(str, found.shape)), "x-encoder-dtype": "float32"}
    return Reply(200, found.tobytes(), headers)


def entities(data: Any) -> Reply:
    """Answer a request for entities: each text is one, with the first of its labels."""
    lists = data.get("labels_per_text") or [data["labels"]] * len(data["texts"])
    results = [
        {"entities": [{"start": 0, "end": len(text), "text": text, "label": labels[0], "score": 0.5}]}
        for text, labels in zip(data["texts"], lists, strict=True)
    ]
    return Reply(200, {"data": {"results": results, "usage": {}}})


class ScriptedServer:
    """Answers `POST` by a handler, and `GET /openapi.json` by the committed document of a plugin with other limits."""

    def __init__(
        self,
        plugin: str,
        handler: Handler,
        *,
        prefix: str = "",
        undescribed: Reply | None = None,
        listening: bool = True,
        tls: tuple[Path, Path] | None = None,
        **limits: int,
    ) -> None:
        document = json.loads((OPENAPI / f"{plugin}.json").read_text())
        document["x-encoder-limits"] |= limits
        self.received: list[Received] = []
        self.most_in_flight = 0
        self.handler = handler
        lock = threading.Lock()
        in_flight = 0
        server = self

        class Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.received.append(Received(self.path, lower(dict(self.headers)), None, 0, self.client_address[1]))
                if self.path == f"{prefix}/v1/models":
                    self.reply(Reply(200, MODELS))
                elif self.path == f"{prefix}/openapi.json":
                    self.reply(undescribed or Reply(200, document))
                else:
                    self.reply(refusal(404, "no such path"))

            def do_POST(self) -> None:
                nonlocal in_flight
                content = self.rfile.read(int(self.headers["content-length"]))
                data = json.loads(content)["data"]
                with lock:
                    in_flight += 1
                    server.most_in_flight = max(server.most_in_flight, in_flight)
                    headers, port = lower(dict(self.headers)), self.client_address[1]
                    server.received.append(Received(self.path, headers, data, len(content), port))
                try:
                    reply = server.handler(data)
                except Exception as error:  # a closed connection would hide which it was
                    reply = refusal(500, f"the handler raised {error!r}")
                finally:
                    with lock:
                        in_flight -= 1
                self.reply(reply)

            def reply(self, reply: Reply) -> None:
                if reply.drop:
                    self.close_connection = True
                    return
                content = reply.content()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
                pass

        class Threads(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128
            # a client that is cancelled resets its connection
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._http = Threads(("127.0.0.1", 0), Requests, bind_and_activate=False)
        self._http.server_bind()
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        self._prefix = prefix
        if listening:
            self.listen()

    def listen(self) -> None:
        """Accept connections, which are refused before."""
        self._http.server_activate()
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._http.server_address[1]}{self._prefix}"

    @property
    def posted(self) -> list[Received]:
        """The requests that were not for the server's description."""
        return [request for request in self.received if request.data is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()
