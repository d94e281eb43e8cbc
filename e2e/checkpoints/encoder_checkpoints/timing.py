"""Times sentence-transformers on a CPU: these functions run in its environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any


@cache
def library(folder: str) -> Any:
    """Load a checkpoint once."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu")


def batches(folder: str, requests: Sequence[list[str]], size: int) -> float:
    """Return the seconds in which the library answers the requests one after the other, as a server around it would."""
    return timed(lambda: [library(folder).encode(request, batch_size=size) for request in requests])


def singles(folder: str, texts: Sequence[str]) -> list[float]:
    """Return the seconds of each text alone."""
    return [timed(partial(library(folder).encode, text)) for text in texts]


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
