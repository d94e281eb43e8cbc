"""Normalising and cutting, against torch and in the order of the reference."""

import numpy as np
import numpy.typing as npt
import pytest

from encoder_checkpoints.original import original
from encoder_plugins.families.embedding import vectors
from encoder_plugins.families.embedding.config import Similarity
from encoder_plugins.families.embedding.vectors import Vectors

POOLED: Vectors = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32) * 3


def lengths(found: Vectors) -> npt.NDArray[np.float32]:
    measured: npt.NDArray[np.float32] = np.linalg.norm(found, axis=1)
    return measured


def test_by_default_the_checkpoint_decides() -> None:
    unit = vectors.finish(POOLED, checkpoint_normalizes=True, dimensions=None, normalize=None)
    np.testing.assert_allclose(lengths(unit), 1, rtol=1e-6)
    raw = vectors.finish(POOLED, checkpoint_normalizes=False, dimensions=None, normalize=None)
    np.testing.assert_array_equal(raw, POOLED)


def test_false_leaves_out_the_checkpoints_own_normalize() -> None:
    found = vectors.finish(POOLED, checkpoint_normalizes=True, dimensions=3, normalize=False)
    np.testing.assert_array_equal(found, POOLED[:, :3])


def test_cutting_comes_after_the_checkpoints_normalize_and_before_the_requests() -> None:
    cut = vectors.finish(POOLED, checkpoint_normalizes=True, dimensions=3, normalize=None)
    np.testing.assert_allclose(cut, (POOLED / lengths(POOLED)[:, None])[:, :3], rtol=1e-6)
    assert (lengths(cut) < 0.999).all()
    unit = vectors.finish(POOLED, checkpoint_normalizes=True, dimensions=3, normalize=True)
    np.testing.assert_allclose(lengths(unit), 1, rtol=1e-6)


def test_a_vector_of_zeros_stays_one() -> None:
    np.testing.assert_array_equal(vectors.unit(np.zeros((2, 4), np.float32)), np.zeros((2, 4)))


@pytest.mark.parametrize("scale", [1e-15, 1e-6, 1, 1e6])
def test_lengths_are_those_of_torch(scale: float) -> None:
    import torch

    scaled = (POOLED * scale).astype(np.float32)
    expected = torch.nn.functional.normalize(torch.from_numpy(scaled), p=2, dim=1).numpy()
    np.testing.assert_allclose(vectors.unit(scaled), expected, rtol=1e-6)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_scores_are_those_of_the_librarys_similarity(similarity: Similarity) -> None:
    queries, documents = POOLED[:2], POOLED[1:]
    oracle = "encoder_plugins.families.embedding.tests.oracle:scores"
    expected = original("sentence_transformers").call(oracle, similarity, queries, documents)
    np.testing.assert_allclose(
        vectors.scores(queries, documents, similarity, pairs=False), expected, rtol=1e-5, atol=1e-5
    )
    paired = vectors.scores(queries, documents[:2], similarity, pairs=True)
    np.testing.assert_allclose(paired, expected.diagonal()[None], rtol=1e-5, atol=1e-5)
