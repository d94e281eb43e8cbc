"""Fewer rows for a document, against the library's own pooling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.families.retrieval import token_pooling

LENGTHS = (1, 2, 3, 7, 40, 181)


def drawn(rows: int, alike: int) -> np.typing.NDArray[np.float32]:
    """Return rows of length 1, some of them equal: ties are where implementations differ."""
    made = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
    made[1::alike] = made[1 % rows]
    unit: np.typing.NDArray[np.float32] = made / np.linalg.norm(made, axis=1, keepdims=True)
    return unit


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0, 4.0, 1024.0])
def test_rows_are_merged_as_by_the_library(factor: float) -> None:
    texts = [drawn(rows, alike) for rows in LENGTHS for alike in (3, 1000)]
    oracle = "encoder_plugins.families.retrieval.tests.oracle:pooled"
    expected = library_answer("sentence_transformers", oracle, texts, factor)
    for rows, wanted in zip(texts, expected, strict=True):
        found = token_pooling.pooled(torch.from_numpy(rows), factor).numpy()
        assert found.shape == wanted.shape
        assert len(found) <= 1 + max(1, int((len(rows) - 1) // factor))
        np.testing.assert_allclose(found, wanted, atol=2e-7)
