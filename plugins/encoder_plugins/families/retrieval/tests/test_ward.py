"""Ward's linkage is scipy's to the last bit, ties included, and other threads run meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from encoder_plugins.families.retrieval import ward

CHANCE = np.random.default_rng(3)


def distances(points: int, kinds: int) -> NDArray[np.float32]:
    """Return the cosine distances of points, of which as many differ as there are kinds."""
    rows = CHANCE.normal(size=(kinds, 32)).astype(np.float32)[np.arange(points) % kinds]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found: NDArray[np.float32] = np.clip(1 - rows @ rows.T, 0, 2)
    return found


@pytest.mark.parametrize(
    ("points", "kinds"), [(2, 2), (2, 1), (3, 3), (7, 2), (60, 60), (60, 9), (60, 1), (400, 400), (400, 150)]
)
def test_merges_are_those_of_scipy(points: int, kinds: int) -> None:
    given = distances(points, kinds)
    expected = hierarchy.linkage(squareform(given, checks=False), method="ward")
    np.testing.assert_array_equal(ward.linkage(given), expected)


def test_distances_of_few_values_tie_as_in_scipy() -> None:
    given = CHANCE.integers(1, 4, size=(80, 80)).astype(np.float32)
    expected = hierarchy.linkage(squareform(np.triu(given, 1) + np.triu(given, 1).T, checks=False), method="ward")
    np.testing.assert_array_equal(ward.linkage(given), expected)


def test_other_threads_run_meanwhile() -> None:
    given = distances(1_000, 1_000)
    ended = threading.Event()

    def work() -> None:
        ward.linkage(given)
        ended.set()

    thread = threading.Thread(target=work)
    turns = 0
    thread.start()
    # scipy's function lets a waiting thread run not once before it ends
    while not ended.wait(0.0001):
        turns += 1
    thread.join()
    assert turns >= 3
