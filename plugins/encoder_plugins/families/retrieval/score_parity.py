"""How cases of documents that a query scores are sent, read and measured, whatever a score is. Standard library and numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.parity.protocol import Array, Case


def body(case: Case) -> dict[str, Any]:
    """Return the request body of a case with documents."""
    return {"data": {"query": case["text"], "documents": case["documents"]}}


def scores_of(ranking: Mapping[str, Any], documents: int) -> Array:
    """Return the scores `[documents]` in the order of the documents; raises ValueError where they are no ranking of all of them."""
    indices, scores = ranking["indices"], np.array(ranking["scores"], dtype=np.float32)
    if sorted(indices) != list(range(documents)) or (np.diff(scores) > 0).any():
        raise ValueError("the ranking does not have each document once, the best first")
    found = np.empty(documents, np.float32)
    found[indices] = scores
    return found


def metrics(ours: NDArray[np.float64], theirs: NDArray[np.float64], *, least_unit: float) -> dict[str, float]:
    """Return the largest difference of a score, and that of the library's own scores of two documents that changed places.

    Args:
        ours: The server's scores `[documents]`.
        theirs: The library's.
        least_unit: Both are in units of the largest of the library's scores, or of this where that is larger.
    """
    unit = max(float(np.abs(theirs).max()), least_unit)
    ranked = theirs[np.argsort(-ours, kind="stable")]
    # the best score behind each place, against the score at the place
    behind = np.maximum.accumulate(ranked[::-1])[::-1]
    return {
        "score_error": float(np.abs(ours - theirs).max()) / unit,
        "rank_gap": float((behind - ranked).max()) / unit,
    }
