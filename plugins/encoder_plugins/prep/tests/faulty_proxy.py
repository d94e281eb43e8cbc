"""A TCP proxy that cuts or stalls large answers, and records the requests: the network between prep and its source."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Proxy:
    """What it does, and what it saw.

    Attributes:
        address: Where clients connect.
        about: What a request must hold for its answer to be cut.
        cut_after: Bytes of one answer after which its connection is closed, while `times` last.
        stall: Whether it is held open instead, and neither it nor a later answer gives another byte.
        times: How many answers meet that; -1 for all.
        requests: The beginning of each request.
        over: Ends what is held open.
    """

    address: str
    about: str = ""
    cut_after: int = 1 << 62
    stall: bool = False
    times: int = -1
    requests: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def ranges(self) -> list[str]:
        """The Range of each request that had one."""
        lines = [line for request in self.requests for line in request.split("\r\n")]
        return [line.partition(":")[2].strip() for line in lines if line.lower().startswith("range:")]


@contextmanager
def in_front_of(address: str) -> Iterator[Proxy]:
    """Run a proxy for a server while the block lasts."""
    target = urlsplit(address)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}")
        ends: list[socket.socket] = [listener]

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    server = socket.create_connection((target.hostname or "", target.port or 80))
                    sent = [0]
                    ends.extend((client, server))
                    for work in (_requests, _answers):
                        threading.Thread(target=work, args=(proxy, client, server, sent), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.over.set()
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


def _requests(proxy: Proxy, client: socket.socket, server: socket.socket, sent: list[int]) -> None:
    with suppress(OSError):
        while chunk := client.recv(65536):
            sent[0] = 0
            proxy.requests.append(chunk.decode("latin-1"))
            server.sendall(chunk)
        server.shutdown(socket.SHUT_WR)


def _answers(proxy: Proxy, client: socket.socket, server: socket.socket, sent: list[int]) -> None:
    with suppress(OSError):
        while chunk := server.recv(65536):
            rest = proxy.cut_after - sent[0]
            if len(chunk) >= rest and proxy.times and proxy.about in proxy.requests[-1]:
                proxy.times -= 1
                client.sendall(chunk[: max(rest, 0)])
                if proxy.stall:
                    proxy.cut_after = 0
                    proxy.over.wait()
                break
            sent[0] += len(chunk)
            client.sendall(chunk)
        client.shutdown(socket.SHUT_RDWR)
