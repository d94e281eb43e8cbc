"""The table of sizes in the documentation, computed from answers."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import numpy as np

from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import CALIBRATED, EmbeddingDtype, Vectors

PAGE = Path(__file__).parents[4] / "docs" / "serving.md"
HEAD = "| `embedding_dtype` | 32 vectors of 768: `float` | `base64` | `bytes` | a document of 300 rows of 128: `float` | `base64` | `bytes` |"


def unit(rows: int, width: int) -> Vectors:
    made = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    found: Vectors = made / np.linalg.norm(made, axis=1, keepdims=True)
    return found


def sizes(vectors: Vectors, dtype: EmbeddingDtype, *, one_text: bool) -> list[int]:
    """Return the bytes of each encoding; the frame of a JSON answer around them has some hundred."""
    ranges = encodings.ranges_of(vectors) if dtype in CALIBRATED else None
    matrices = [vectors] if one_text else [row[None] for row in vectors]
    found = []
    for encoding in ("float", "base64"):
        if one_text:
            written = encodings.encoded_matrices(matrices, encoding, dtype, ranges)
        else:
            written = encodings.encoded(vectors, encoding, dtype, ranges)
        found.append(len(msgspec.json.encode(written)))
    return [*found, len(encodings.encode_bytes(vectors, dtype, ranges)[0])]


def test_the_documented_sizes_are_those_of_answers() -> None:
    lines = [HEAD, "|---" * 7 + "|"]
    for dtype in get_args(EmbeddingDtype):
        each = [*sizes(unit(32, 768), dtype, one_text=False), *sizes(unit(300, 128), dtype, one_text=True)]
        lines.append(f"| `{dtype}` | " + " | ".join(f"{size / 1000:.1f} KB" for size in each) + " |")
    table = "\n".join(lines)
    assert table in PAGE.read_text(encoding="utf-8"), table
