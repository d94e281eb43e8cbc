"""What happens to float32 vectors or rows on their way into an answer: to fewer numbers each, and to another dtype. Pure but for a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np

from encoder_plugins.artifact.reference import Array
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval import calibration
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import CALIBRATED, EmbeddingDtype

# torch.nn.functional.normalize
EPSILON = np.float32(1e-12)
# combinations of size and norm whose ranges are kept
MOST_KEPT = 64


class Ranges:
    """The ranges of int8 and uint8 by what becomes of vectors; used by several threads at once.

    Args:
        model: The artifact's model folder.
        width: Numbers of a vector.
    """

    def __init__(self, model: Path, width: int) -> None:
        found = calibration.read(model)
        self._vectors = found if found is not None and found.shape[1] == width else None
        self._found: dict[Hashable, Array] = {}
        self._lock = threading.Lock()

    def check(self, dtype: EmbeddingDtype, *, path: str = "data.embedding_dtype") -> None:
        """Refuse a dtype that needs ranges where the artifact has none.

        Raises:
            InvalidRequest: It does.
        """
        if dtype in CALIBRATED and self._vectors is None:
            raise InvalidRequest(
                f"{dtype} needs ranges of calibration vectors, which this artifact does not have: prepare the model again,"
                " or use float16, bfloat16, binary or ubinary",
                param=path,
            )

    def of(self, dtype: EmbeddingDtype, key: Hashable, finish: Callable[[Array], Array]) -> Array | None:
        """Return the ranges `[2, width]` for a dtype that ``check`` let pass; None for one that needs none.

        Args:
            dtype: The dtype.
            key: What distinguishes this ``finish`` from others.
            finish: What becomes of vectors `[vectors, width]` before they are quantised.
        """
        if dtype not in CALIBRATED or self._vectors is None:
            return None
        with self._lock:
            if key not in self._found:
                if len(self._found) >= MOST_KEPT:
                    self._found.clear()
                self._found[key] = encodings.ranges_of(finish(self._vectors))
            return self._found[key]


def cut(rows: Array, dimensions: int | None, *, normalize: bool) -> Array:
    """Return the first ``dimensions`` numbers of rows `[rows, width]`, of length 1 again if ``normalize``; all for None."""
    if dimensions is None or dimensions == rows.shape[1]:
        return rows
    kept: Array = np.ascontiguousarray(rows[:, :dimensions])
    if not normalize:
        return kept
    lengths = np.sqrt(np.einsum("rd,rd->r", kept, kept))[:, None]
    unit: Array = kept / np.maximum(lengths, EPSILON)
    return unit
