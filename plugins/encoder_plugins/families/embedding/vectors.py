"""What happens to pooled vectors: the checkpoint's Normalize, truncation and L2, in the order of sentence-transformers.

Pure numpy. ``encode`` of the reference runs all modules, then cuts to ``truncate_dim``, then normalises if the caller wants that:
so a vector that was cut after the checkpoint's own Normalize is not of length 1, unless the request says ``normalize``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from encoder_plugins.families.embedding.config import Similarity

Vectors = npt.NDArray[np.float32]

# torch.nn.functional.normalize
EPSILON = np.float32(1e-12)


def finish(pooled: Vectors, *, checkpoint_normalizes: bool, dimensions: int | None, normalize: bool | None) -> Vectors:
    """Turn pooled vectors into those of the answer.

    Args:
        pooled: `[texts, width]`, as the last module before Normalize left them.
        checkpoint_normalizes: Whether the checkpoint has a Normalize module.
        dimensions: Numbers to keep of each vector; None keeps all.
        normalize: None does as the reference does by default, True makes the result of length 1,
            False leaves out the checkpoint's Normalize module.

    Returns:
        `[texts, dimensions]`
    """
    vectors = unit(pooled) if checkpoint_normalizes and normalize is not False else pooled
    if dimensions is not None:
        vectors = vectors[:, :dimensions]  # [texts, dimensions]
    return np.ascontiguousarray(unit(vectors) if normalize else vectors)


def unit(vectors: Vectors) -> Vectors:
    """Return `[texts, width]` with rows of length 1: ``x / max(|x|, 1e-12)``."""
    lengths = np.sqrt(np.einsum("td,td->t", vectors, vectors))[:, None]  # [texts, 1]
    result: Vectors = vectors / np.maximum(lengths, EPSILON)
    return result


def scores(queries: Vectors, documents: Vectors, similarity: Similarity, *, pairs: bool) -> Vectors:
    """Return what ``similarity`` of the reference gives; each score by itself, so that it does not depend on the other texts.

    Args:
        queries: `[queries, width]`
        documents: `[documents, width]`
        similarity: What a score is.
        pairs: Whether each query is scored with the document at its position only.

    Returns:
        `[queries, documents]`, or `[1, pairs]`
    """
    if similarity == "cosine":
        queries, documents = unit(queries), unit(documents)
    if similarity in ("cosine", "dot"):
        products: Vectors = np.einsum("nd,nd->n" if pairs else "qd,nd->qn", queries, documents)
        return products[None] if pairs else products
    if pairs:
        return -_lengths(queries - documents, similarity)[None]
    return np.stack([-_lengths(documents - query, similarity) for query in queries])


def _lengths(differences: Vectors, similarity: Similarity) -> Vectors:
    """Return the length of each of `[vectors, width]`."""
    if similarity == "manhattan":
        lengths: Vectors = np.abs(differences).sum(axis=1)
        return lengths
    squares: Vectors = np.einsum("nd,nd->n", differences, differences)
    return np.sqrt(squares)
