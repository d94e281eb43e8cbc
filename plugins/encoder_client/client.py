"""The synchronous client: its connections, and the threads that send the requests of a long list."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from encoder_client import exchange, server
from encoder_client.connections import Connections
from encoder_client.errors import AuthenticationError, EncoderClientError, NotServedError
from encoder_client.progress import Progress
from encoder_client.retry import BUSY
from encoder_client.server import Server
from encoder_client.settings import Settings
from encoder_client.work import POOLING, Answer, Batch, Work, param_in_call

T = TypeVar("T")


class Client:
    """Sends requests to one server. Threads may share it; ``close`` it, or use it in a ``with`` block."""

    def __init__(self, settings: Settings) -> None:
        """Make a client; nothing is sent yet.

        Raises:
            ArgumentError: A setting is wrong.
        """
        self.settings = settings
        self._base = settings.base_url()
        self._connections = Connections(settings)
        # one that is dropped instead of being closed leaves no connection behind
        weakref.finalize(self, self._connections.close)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._server: Server | None = None
        _CLIENTS.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Self], tuple[Settings]]:
        # in another process: a client with connections of its own
        return type(self), (self.settings,)

    def close(self) -> None:
        """Close the connections; calls of other threads end with a RuntimeError."""
        self._closed.set()
        self._connections.close()

    def _begin_in_child(self) -> None:
        self._lock = threading.Lock()
        self._connections.begin()

    def server(self) -> Server:
        """Return what the server says about itself, which is read once.

        Raises:
            EncoderClientError: It could not be read.
        """
        with self._lock:
            if self._server is None:
                try:
                    self._server = server.described(self.get(server.OPENAPI).content)
                except (NotServedError, AuthenticationError):
                    # a proxy may pass the routes of the plugin alone; a wrong key is refused again with the first request
                    self._server = Server()
            return self._server

    def get(self, path: str) -> Answer:
        """Return the answer to a GET request; raises as ``post`` does."""
        return self._send("GET", path, None, self._closed)

    def post(self, path: str, body: bytes) -> Answer:
        """Return the answer to a POST request with a body of JSON.

        Raises:
            EncoderClientError: There was none, or it was a refusal.
        """
        return self._send("POST", path, body, self._closed)

    def run(self, work: Work[T]) -> T:
        """Send the requests of a call, and return its result.

        Raises:
            EncoderClientError: One of them failed; those that were not sent yet are not sent.
        """
        with Progress(work.total, shown=work.progress) as progress:
            first = list(itertools.islice(work.batches, 2))
            if len(first) < 2:
                return work.combine(
                    [part for batch in first for part in self._parts(batch, work, progress, self._closed)]
                )
            return work.combine(self._parts_in_threads(itertools.chain(first, work.batches), work, progress))

    def _parts_in_threads(self, batches: Iterator[Batch], work: Work[Any], progress: Progress) -> list[Any]:
        stop = threading.Event()
        lock = threading.Lock()
        parts: dict[tuple[int, int], list[Any]] = {}

        def take() -> Batch | None:
            with lock:
                return None if stop.is_set() else next(batches, None)

        def send_all() -> None:
            while (batch := take()) is not None:
                parts[batch.order] = self._parts(batch, work, progress, stop)

        with ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix="encoder-client") as threads:
            workers = [threads.submit(send_all) for _ in range(self.settings.concurrency)]
            try:
                done, _ = wait(workers, return_when=FIRST_EXCEPTION)
                for worker in done:
                    worker.result()
            finally:
                # those in flight are answered first, so that their connections can be used again
                stop.set()
        return [part for place in sorted(parts) for part in parts[place]]

    def _parts(self, batch: Batch, work: Work[Any], progress: Progress, stop: threading.Event) -> list[Any]:
        try:
            answer = self._send("POST", POOLING, batch.body(), stop)
        except EncoderClientError as error:
            if batch.is_too_large(error):
                return [part for half in batch.halves() for part in self._parts(half, work, progress, stop)]
            error.relocate(param_in_call(error.param, batch))
            raise
        part = work.part(answer, batch)
        progress.add(len(batch.items))
        return [part]

    def _send(self, method: str, path: str, body: bytes | None, stop: threading.Event) -> Answer:
        attempts = exchange.Attempts(self.settings)
        while True:
            try:
                status, answer = self._once(method, path, body)
            except httpx.HTTPError as error:
                seconds = attempts.failed(error)
            else:
                if status not in BUSY:
                    return exchange.checked(status, answer)
                seconds = attempts.busy(answer, status)
            if stop.wait(seconds):
                raise RuntimeError("the call has ended: the client was closed, or another request of the call failed")

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, Answer]:
        headers = {"content-type": "application/json"} if body is not None else {}
        with (
            self._connections.take() as http,
            http.stream(method, self._base + path, content=body, headers=headers) as response,
        ):
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
            return response.status_code, Answer(content, exchange.lower(response.headers))


_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()


def _begin_in_child() -> None:
    for client in list(_CLIENTS):
        client._begin_in_child()


# not every system has forks
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
