"""Similarities, against what sentence-transformers itself computes."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from encoder_checkpoints.answer_cache import library_answer
from encoder_client import ArgumentError, AsyncMultiVectorEncoder, MultiVectorEncoder, SentenceTransformer
from encoder_client.similarity import RowsName, VectorsName

ORACLE = "encoder_client.tests.oracle"
RANDOM = np.random.default_rng(0)
LEFT = RANDOM.standard_normal((5, 16)).astype(np.float32)
RIGHT = RANDOM.standard_normal((7, 16)).astype(np.float32)
QUERIES = [RANDOM.standard_normal((rows, 8)).astype(np.float32) for rows in (4, 1, 6)]
DOCUMENTS = [RANDOM.standard_normal((rows, 8)).astype(np.float32) for rows in (3, 9, 1, 5)]


def padded(embeddings: list[Any]) -> Any:
    """Return embeddings as one array, filled up with rows of zeros."""
    most = max(map(len, embeddings))
    return np.stack([np.pad(rows, ((0, most - len(rows)), (0, 0))) for rows in embeddings])


def library(function: str, *arguments: Any) -> Any:
    return library_answer("sentence_transformers", f"{ORACLE}:{function}", *arguments)


# one test, so that one process starts the library
def test_vectors_and_rows_are_as_alike_as_in_the_library() -> None:
    name: VectorsName
    for name in get_args(VectorsName):
        with SentenceTransformer("http://minilm", similarity_fn_name=name) as model:
            found = model.similarity(LEFT, RIGHT)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, library("similarity", name, LEFT, RIGHT), atol=2e-6)
            np.testing.assert_allclose(model.similarity(LEFT[0], list(RIGHT)), found[:1], atol=2e-6)
            pairs = library("similarity_pairwise", name, LEFT, RIGHT[:5])
            np.testing.assert_allclose(model.similarity_pairwise(LEFT, RIGHT[:5]), pairs, atol=2e-6)
            with pytest.raises(ArgumentError):
                model.similarity_pairwise(LEFT, RIGHT)
    rows_name: RowsName
    for rows_name in get_args(RowsName):
        with MultiVectorEncoder("http://colbert", similarity_fn_name=rows_name) as encoder:
            found = encoder.similarity(QUERIES, DOCUMENTS)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, library("maxsim", rows_name, QUERIES, DOCUMENTS), atol=5e-6)
            np.testing.assert_allclose(encoder.similarity(QUERIES[0], DOCUMENTS), found[:1])
            pairs = library("maxsim_pairwise", rows_name, QUERIES, DOCUMENTS[:3])
            np.testing.assert_allclose(encoder.similarity_pairwise(QUERIES, DOCUMENTS[:3]), pairs, atol=5e-6)
            with pytest.raises(ArgumentError):
                encoder.similarity_pairwise(QUERIES, DOCUMENTS)
            # rows of zeros that fill up an array do not count: they must not win over rows whose products are negative
            many, few = padded([-abs(rows) for rows in QUERIES]), padded([abs(rows) for rows in DOCUMENTS])
            np.testing.assert_allclose(
                encoder.similarity(many, few), library("similarity", rows_name, many, few), atol=5e-6
            )
            pairs = library("similarity_pairwise", rows_name, many, few[:3])
            np.testing.assert_allclose(encoder.similarity_pairwise(many, few[:3]), pairs, atol=5e-6)
            empty = [*DOCUMENTS, np.zeros((0, 8), np.float32)]
            found = encoder.similarity(QUERIES, empty)
            np.testing.assert_allclose(found, library("maxsim", rows_name, QUERIES, empty), atol=5e-6)
            assert (found[:, -1] < found[:, :-1].min()).all()


@pytest.mark.parametrize("name", get_args(VectorsName))
@pytest.mark.parametrize("width", [1, 4])
def test_vectors_of_another_width_are_refused(name: VectorsName, width: int) -> None:
    with SentenceTransformer("http://minilm", similarity_fn_name=name) as model:
        for call in (model.similarity, model.similarity_pairwise):
            with pytest.raises(ArgumentError, match="differ") as caught:
                call(np.ones((2, 3)), np.ones((2, width)))
            assert caught.value.param == "embeddings2"
    with MultiVectorEncoder("http://colbert") as encoder:
        for call in (encoder.similarity, encoder.similarity_pairwise):
            with pytest.raises(ArgumentError, match="differ") as caught:
                call([np.ones((2, 3))], [np.ones((5, width))])
            assert caught.value.param == "embeddings2"


def test_another_function_is_refused() -> None:
    wrong: Any = "maxsim"
    with pytest.raises(ArgumentError) as caught:
        SentenceTransformer("http://minilm", similarity_fn_name=wrong)
    assert caught.value.param == "similarity_fn_name"
    wrong = "cosine"
    for kind in (MultiVectorEncoder, AsyncMultiVectorEncoder):
        with pytest.raises(ArgumentError) as caught:
            kind("http://colbert", similarity_fn_name=wrong)
        assert caught.value.param == "similarity_fn_name"
    with pytest.raises(ArgumentError) as caught:
        SentenceTransformer("http://minilm", truncate_dim=0)
    assert caught.value.param == "truncate_dim"
