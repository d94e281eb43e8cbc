"""What crosses the process border with the texts of a prompt: which tokens have rows, and the rows of queries to score documents by.

Everything is packed into bytes, because vLLM copies a request's parameters deeply and bytes cost nothing there. Numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.backbones import token_marks
from encoder_plugins.families.retrieval.tokens import TokenisedText

Rows = NDArray[np.float32]

# keys in extra_kwargs
KEPT, QUERIES, QUERY_COUNTS = "kept", "queries", "query_counts"
_ROWS, _COUNTS = np.dtype("<f4"), np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class Queries:
    """The rows that documents are scored by, as they travel with each of them.

    Attributes:
        rows: `[rows, dimensions]` little-endian float32: the rows of all queries, one behind the other.
        counts: `[queries]` int32: the rows of each.
    """

    rows: bytes
    counts: bytes


def pack_queries(rows: Sequence[Rows]) -> Queries:
    """Pack the rows `[rows, dimensions]` of each query."""
    counts = np.asarray([len(each) for each in rows], _COUNTS)
    return Queries(np.concatenate(rows).astype(_ROWS).tobytes(), counts.tobytes())


def encode(texts: Sequence[TokenisedText], queries: Queries | None = None) -> dict[str, Any] | None:
    """Return the ``extra_kwargs`` of the PoolingParams of a prompt; None where it needs none.

    Args:
        texts: The texts of the prompt, one behind the other.
        queries: What each text is scored by; None where their rows are wanted.
    """
    found: dict[str, Any] = {}
    if len(texts) > 1 or any(text.keys < len(text.ids) for text in texts):
        found |= token_marks.encode([len(text.ids) for text in texts], keys=[text.keys for text in texts])
    if any(text.kept is not None for text in texts):
        kept = [np.ones(len(text.ids), np.bool_) if text.kept is None else text.kept for text in texts]
        found[KEPT] = np.packbits(np.concatenate(kept)).tobytes()
    if queries is not None:
        found |= {QUERIES: queries.rows, QUERY_COUNTS: queries.counts}
    return found or None


def kept_tokens(extra: Mapping[str, Any] | None, tokens: int) -> NDArray[np.int32]:
    """Return the positions of a request's tokens that have rows; all where the request does not say. Never raises."""
    bits = (extra or {}).get(KEPT)
    if not isinstance(bits, bytes) or len(bits) != -(-tokens // 8):
        return np.arange(tokens, dtype=np.int32)
    kept = np.unpackbits(np.frombuffer(bits, np.uint8), count=tokens)
    return np.flatnonzero(kept).astype(np.int32)


def queries_of(extra: Mapping[str, Any] | None, dimensions: int) -> tuple[bytes, NDArray[np.int32]] | None:
    """Return the packed rows that a request's texts are scored by, and the rows of each query; None for none. Never raises.

    Args:
        extra: The request's ``extra_kwargs``.
        dimensions: Width of a row.
    """
    rows, counts = ((extra or {}).get(name) for name in (QUERIES, QUERY_COUNTS))
    if not isinstance(rows, bytes) or not isinstance(counts, bytes) or len(counts) % _COUNTS.itemsize:
        return None
    each = np.frombuffer(counts, _COUNTS).astype(np.int32)
    fits = len(each) and (each >= 1).all() and int(each.sum()) * dimensions * _ROWS.itemsize == len(rows)
    return (rows, each) if fits else None


def unpack_rows(rows: bytes, dimensions: int) -> Rows:
    """Return `[rows, dimensions]` of packed rows."""
    return np.frombuffer(rows, _ROWS).reshape(-1, dimensions).astype(np.float32)
