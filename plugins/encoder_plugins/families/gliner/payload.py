"""What crosses the process border: where words and labels are, to the pooler; candidates, from it.

Positions are packed into bytes, because vLLM copies a request's parameters deeply and bytes cost nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# columns of a candidate; behind them come ``classes`` pairs of (class, logit), the best first
START, WIDTH, CLASS, LOGIT = range(4)
COLUMNS = 4

_POSITION = np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class Item:
    """One text, as the pooler sees it.

    Attributes:
        words: `[words]` int32: the position of each word's first token; -1 for a word whose tokens were cut off, which is a
            row of zeros in the library.
        labels: `[labels]` int32: the position of each label's class token.
        threshold: Candidates are those with a probability above it.
        classes: How many of a candidate span's best classes come along; 0 for none.
    """

    words: NDArray[np.int32]
    labels: NDArray[np.int32]
    threshold: float
    classes: int = 0


Positions = Sequence[int] | NDArray[np.int32]


def encode(words: Positions, labels: Positions, threshold: float, classes: int = 0) -> dict[str, Any]:
    """Return the ``extra_kwargs`` of one prompt's PoolingParams."""
    return {
        "words": np.asarray(words, _POSITION).tobytes(),
        "labels": np.asarray(labels, _POSITION).tobytes(),
        "threshold": threshold,
        "classes": classes,
    }


def decode(extra: Mapping[str, Any] | None) -> Item | None:
    """Return the item behind ``extra_kwargs``; None where there is none, as in vLLM's own profile runs."""
    if not extra or "words" not in extra:
        return None
    words, labels = (np.frombuffer(extra[name], _POSITION).astype(np.int32) for name in ("words", "labels"))
    return Item(words, labels, float(extra["threshold"]), int(extra["classes"]))
