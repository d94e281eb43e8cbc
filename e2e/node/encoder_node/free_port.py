"""Ports for the processes that a node, a test or a benchmark starts."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from itertools import islice

# above those of a node, and below those that the kernel gives to connections, of which one may be in use until a server listens
_PORTS = range(11_000, 30_000)
_TRIALS = 200


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of this address that nothing listens on; see ``free_ports``."""
    return free_ports(1, host)[0]


def free_ports(number: int, host: str = "127.0.0.1") -> list[int]:
    """Return so many of them, by chance, so that several processes have different ones.

    Raises:
        OSError: There are too few.
    """
    found = list(islice(_free(host), number))
    if len(found) < number:
        raise OSError(f"there are no free ports on {host}")
    return found


def _free(host: str) -> Iterator[int]:
    for port in random.SystemRandom().sample(_PORTS, _TRIALS):
        with socket.socket() as trial:
            # what ended a moment ago is no reason against a port
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except OSError:
                continue
        yield port
