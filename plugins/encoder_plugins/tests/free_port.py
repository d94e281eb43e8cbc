"""A port for a server that a test starts."""

from __future__ import annotations

import random
import socket

# above those of a node, and below those that the kernel gives to connections, of which one may be in use until a server listens
_PORTS = range(11_000, 30_000)
_TRIALS = 100


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on, one of many, so that tests in several processes have different ones.

    Raises:
        RuntimeError: None was found.
    """
    for port in random.SystemRandom().sample(_PORTS, _TRIALS):
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("there are no free ports on 127.0.0.1")
