"""The index arithmetic of a step, against the same thing done one item at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from encoder_plugins.families.gliner.heads.row_groups import Batch, cut, fits, plan
from encoder_plugins.families.gliner.payload import Item


def item(words: Sequence[int], labels: Sequence[int], threshold: float = 0.5, classes: int = 0) -> Item:
    return Item(np.asarray(words, np.int32), np.asarray(labels, np.int32), threshold, classes)


ITEMS = [
    item([4, 5, 9], [0, 2]),
    None,
    item([3], [1], 0.0),
    item([], [1]),
    item([6, -1, 8, -1, 11], [0, 1, 2], 1.0, 5),
    item([4, 5], []),
    item([2, 3], [0], 0.3),
]
LENGTHS = [10, 3, 4, 6, 12, 6, 4]
ANSWERED = [0, 2, 4, 6]


def words_of(batch: Batch, number: int) -> list[int]:
    """Return the rows of an item's words, -1 for none."""
    rows = batch.rows[: batch.words].copy()
    rows[batch.missing] = -1
    return [int(row) for row in rows[batch.word_offsets[number] : batch.word_offsets[number + 1]]]


@pytest.mark.parametrize("shift", [0, 1])
def test_every_item_finds_its_rows(shift: int) -> None:
    batch = plan(ITEMS, LENGTHS, label_shift=shift)
    assert batch.requests.tolist() == ANSWERED
    starts = np.cumsum([0, *LENGTHS])
    for number, request in enumerate(ANSWERED):
        source = ITEMS[request]
        assert source is not None
        assert words_of(batch, number) == [word + starts[request] if word >= 0 else -1 for word in source.words]
        labels = batch.rows[batch.words :][batch.label_offsets[number] : batch.label_offsets[number + 1]]
        assert labels.tolist() == (source.labels + starts[request] + shift).tolist()
    assert batch.rows.min() >= 0
    assert batch.rows.max() < sum(LENGTHS)
    assert (batch.max_words, batch.max_labels) == (5, 3)
    assert batch.classes.tolist() == [0, 0, 5, 0]
    assert batch.rows.dtype == batch.order.dtype == batch.word_offsets.dtype == np.int32


def test_items_with_most_words_come_first() -> None:
    batch = plan(ITEMS, LENGTHS, label_shift=0)
    counts = np.diff(batch.word_offsets)[batch.order]
    assert sorted(batch.order.tolist()) == list(range(len(ANSWERED)))
    assert counts.tolist() == sorted(counts.tolist(), reverse=True)


def test_nothing_to_answer_is_no_error() -> None:
    batch = plan([None, item([], [])], [3, 2], label_shift=0)
    assert batch.requests.tolist() == []
    assert (batch.words, batch.max_words, batch.max_labels) == (0, 0, 0)


@pytest.mark.parametrize(
    ("words", "labels", "shift", "fine"),
    [
        ([0, 4], [1], 0, True),
        ([-1], [1], 0, True),
        ([5], [1], 0, False),
        ([-2], [1], 0, False),
        ([1], [5], 0, False),
        ([1], [4], 1, False),
        ([1], [3], 1, True),
        ([1], [-1], 0, False),
        ([], [1], 0, False),
        ([1], [], 0, False),
    ],
)
def test_an_item_that_points_outside_its_request_is_left_out(
    words: list[int], labels: list[int], shift: int, fine: bool
) -> None:
    assert fits(item(words, labels), 5, shift) is fine


@pytest.mark.parametrize("threshold", [0.001, 0.3, 0.5, 0.9, 0.999999])
def test_the_cut_is_a_hair_generous(threshold: float) -> None:
    lowest = 1 / (1 + math.exp(-cut(threshold)))
    assert threshold - 2e-6 <= lowest < threshold


def test_the_cut_at_the_ends() -> None:
    assert cut(0.0) == -math.inf
    assert cut(math.nan) == math.inf
    assert 13.0 < cut(1.0) < 14.0
    assert cut(1.5) == math.inf
