"""sentence-transformers itself, for tests: these functions run in its environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer, SimilarityFunction

from encoder_plugins.families.embedding import reference

Array = NDArray[np.float32]


@cache
def library(folder: str) -> SentenceTransformer:
    """Load a checkpoint once, in float32."""
    return reference.load(Path(folder))


def vectors(folder: str, cases: Sequence[Mapping[str, Any]]) -> list[Array]:
    """Return the vector of each case."""
    with reference.few_threads(Path(folder)):
        return [reference.RECORDER.encode(library(folder), case) for case in cases]


def outputs(folder: str, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Array]]:
    """Return the vector of each case, or its scores, as the recorder does."""
    with reference.few_threads(Path(folder)):
        return [
            {"vector": reference.RECORDER.encode(library(folder), case)}
            if case["documents"] is None
            else {"scores": reference.score(library(folder), case)}
            for case in cases
        ]


def encode(folder: str, texts: Sequence[str]) -> Array:
    """Return the vectors `[texts, dimensions]` of one call."""
    found: Array = library(folder).encode(list(texts))
    return found


def similarities(folder: str, queries: Sequence[str], documents: Sequence[str], dimensions: int | None = None) -> Array:
    """Return the scores `[queries, documents]`; with ``dimensions`` those of vectors that are cut, and have length 1 again."""
    model = library(folder)
    options: dict[str, Any] = {"truncate_dim": dimensions, "normalize_embeddings": dimensions is not None}
    query, document = model.encode_query(list(queries), **options), model.encode_document(list(documents), **options)
    found: Array = model.similarity(query, document).numpy()
    return found


def scores(similarity: str, queries: Array, documents: Array) -> Array:
    """Return the scores `[queries, documents]` of vectors."""
    found: Array = SimilarityFunction.to_similarity_fn(similarity)(queries, documents).numpy()
    return found


def token_ids(folder: str, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text."""
    return [library(folder).preprocess([text])["input_ids"][0].tolist() for text in texts]


def trusted_class(folder: str) -> str:
    """Return the name of the encoder's class where the checkpoint's own code may run."""
    return type(reference.load(Path(folder), trust_remote_code=True)[0].auto_model).__name__
