"""Similarities of vectors, and of rows, as sentence-transformers computes them; in numpy, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from encoder_client.errors import ArgumentError

VectorsName: TypeAlias = Literal["cosine", "dot", "euclidean", "manhattan"]
RowsName: TypeAlias = Literal["maxsim", "meanmaxsim"]
Scores: TypeAlias = NDArray[np.float32]
Vectors: TypeAlias = "NDArray[Any] | Sequence[NDArray[Any]]"

_EPSILON = np.float32(1e-12)
# of a document without rows, as in the library: below that of any other
_NO_ROWS = np.float32(-1e9)
# of differences that are in memory at once
_MOST_NUMBERS = 1 << 22


def similarity(name: VectorsName, embeddings1: Vectors, embeddings2: Vectors) -> Scores:
    """Return how alike vectors are.

    Args:
        name: The function; distances are negative, so that more is more alike.
        embeddings1: `[n, width]`, or `[width]` for one.
        embeddings2: `[m, width]`, or `[width]` for one.

    Returns:
        `[n, m]`

    Raises:
        ArgumentError: Their widths differ.
    """
    left, right = _matrix(embeddings1), _matrix(embeddings2)
    _check_widths(left, right)
    return _MATRICES[name](left, right)


def similarity_pairwise(name: VectorsName, embeddings1: Vectors, embeddings2: Vectors) -> Scores:
    """Return how alike the vectors at the same position are.

    Args:
        name: As in ``similarity``.
        embeddings1: `[n, width]`, or `[width]` for one.
        embeddings2: The same shape.

    Returns:
        `[n]`

    Raises:
        ArgumentError: There are more vectors on one side.
    """
    left, right = _matrix(embeddings1), _matrix(embeddings2)
    if left.shape != right.shape:
        raise ArgumentError(f"the shapes {left.shape} and {right.shape} differ", param="embeddings2")
    if name == "cosine":
        left, right = _unit(left), _unit(right)
    if name in ("cosine", "dot"):
        products: Scores = np.einsum("nd,nd->n", left, right)
        return products
    return _distances(name, left - right)


def maxsim(name: RowsName, queries: Vectors, documents: Vectors) -> Scores:
    """Return the score of each query for each document: the sum over the query's rows of the best product with a document's row.

    Args:
        name: ``meanmaxsim`` divides by the query's rows.
        queries: `[rows, width]` for each query; one array for one query. An array of all `[queries, rows, width]` is filled up with
            rows of zeros, which do not count.
        documents: The same of the documents.

    Returns:
        `[queries, documents]`

    Raises:
        ArgumentError: Their widths differ.
    """
    left, right = _lists(queries), _lists(documents)
    return np.array([[_maxsim(name, query, document) for document in right] for query in left], np.float32).reshape(
        len(left), len(right)
    )


def maxsim_pairwise(name: RowsName, queries: Vectors, documents: Vectors) -> Scores:
    """Return the score of each query for the document at its own position: `[queries]`.

    Raises:
        ArgumentError: There are more documents than queries, or fewer, or their widths differ.
    """
    left, right = _lists(queries), _lists(documents)
    if len(left) != len(right):
        raise ArgumentError(f"{len(right)} documents for {len(left)} queries", param="embeddings2")
    return np.array([_maxsim(name, query, document) for query, document in zip(left, right, strict=True)], np.float32)


def _maxsim(name: RowsName, query: NDArray[Any], document: NDArray[Any]) -> np.float32:
    _check_widths(query, document)
    score = (query @ document.T).max(axis=1).sum() if len(document) else _NO_ROWS
    return np.float32(score / max(len(query), 1) if name == "meanmaxsim" else score)


def _check_widths(left: NDArray[Any], right: NDArray[Any]) -> None:
    # of width 1, vectors would be compared with each number of the others
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ArgumentError(f"the shapes {left.shape} and {right.shape} differ in their width", param="embeddings2")


def _lists(given: Vectors) -> list[NDArray[Any]]:
    if isinstance(given, np.ndarray) and given.ndim == 2:
        return [given.astype(np.float32, copy=False)]
    padded = isinstance(given, np.ndarray) and given.ndim == 3
    found = [np.asarray(rows, np.float32) for rows in given]
    return [rows[rows.any(axis=1)] for rows in found] if padded else found


def _matrix(given: Vectors) -> Scores:
    found = np.asarray(given, np.float32)
    return found[None] if found.ndim == 1 else found


def _unit(vectors: Scores) -> Scores:
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
    found: Scores = vectors / np.maximum(lengths, _EPSILON)
    return found


def _distances(name: VectorsName, differences: Scores) -> Scores:
    absolute = np.abs(differences)
    lengths: Scores = absolute.sum(axis=-1) if name == "manhattan" else np.sqrt((absolute**2).sum(axis=-1))
    return -lengths


def _all_distances(name: VectorsName) -> Callable[[Scores, Scores], Scores]:
    def distances(left: Scores, right: Scores) -> Scores:
        found = np.empty((len(left), len(right)), np.float32)
        step = max(1, _MOST_NUMBERS // max(1, right.size))
        for start in range(0, len(left), step):
            found[start : start + step] = _distances(name, left[start : start + step, None] - right[None])
        return found

    return distances


_MATRICES: Mapping[VectorsName, Callable[[Scores, Scores], Scores]] = {
    "cosine": lambda left, right: _unit(left) @ _unit(right).T,
    "dot": lambda left, right: left @ right.T,
    "euclidean": _all_distances("euclidean"),
    "manhattan": _all_distances("manhattan"),
}
