"""When Python's garbage collector runs. Imports of vLLM, torch and transformers make objects by the million, and nearly all of them stay.

Looking through them again and again took a fifth of the time that those imports take.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# new objects before the collector looks through the youngest, in place of CPython's 700
OBJECTS = 50_000


def run_seldom() -> None:
    """Let the collector run after every OBJECTS new objects: for a process that imports a library at any time."""
    gc.set_threshold(OBJECTS)


@contextmanager
def stopped() -> Iterator[None]:
    """Stop the collector while a block imports; it never looks through what the block has left."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
