"""A side of a comparison as a process: it reads its task, says that it is ready, and behind the next line prints what it measures.

`peer_process.started` is the other end. The standard library only: a side runs in the environment of its library.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

READY = '{"ready": true}'
CELL = "cell "


def serve(start: Callable[[dict[str, Any]], Callable[[], Iterator[Any]]]) -> None:
    """Read the task, start the side with it, and print its cells, data classes, behind the next line."""
    # its texts are too many for a command line
    cells = start(json.loads(sys.stdin.readline()))
    print(READY, flush=True)
    if not sys.stdin.readline():
        return
    for cell in cells():
        print(f"{CELL}{json.dumps(asdict(cell))}", flush=True)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call takes, and what it returns."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found
