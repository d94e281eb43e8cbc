"""Python's garbage collector beside large imports: vLLM, torch and transformers create objects by the million, and nearly all of them stay.

By default the collector examines them again and again while they are imported.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# new objects before the collector examines the youngest generation; CPython's default is 700
THRESHOLD = 50_000


def raise_threshold() -> None:
    """Let the collector run only after THRESHOLD new objects: for a process that may import a library at any time."""
    gc.set_threshold(THRESHOLD)


@contextmanager
def paused() -> Iterator[None]:
    """Pause the collector while a block imports, and exclude what exists at its end from later collections (``gc.freeze``)."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
