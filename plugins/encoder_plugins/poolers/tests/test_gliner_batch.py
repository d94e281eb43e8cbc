"""The index arithmetic of a step, against the same thing done one item at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from encoder_plugins.gliner.payload import Item
from encoder_plugins.poolers.gliner_batch import Batch, cut, fits, plan, recurrent_order


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
    """Return the rows of an item's words, -1 for none, in the text's order."""
    rows = batch.rows[: batch.words].copy()
    rows[batch.missing] = -1
    ordered = rows[batch.unpacked] if len(batch.unpacked) else rows
    return [int(row) for row in ordered[batch.word_offsets[number] : batch.word_offsets[number + 1]]]


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("shift", [0, 1])
def test_every_item_finds_its_rows(recurrent: bool, shift: int) -> None:
    batch = plan(ITEMS, LENGTHS, label_shift=shift, recurrent=recurrent)
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
    assert batch.rows.dtype == batch.unpacked.dtype == batch.word_offsets.dtype == np.int32


@pytest.mark.parametrize("counts", [[1], [3, 1, 5, 5, 2], [1, 1, 1], [7, 7], list(range(1, 40))])
def test_the_order_of_the_lstm_is_that_of_torch(counts: list[int]) -> None:
    values = torch.arange(sum(counts))
    expected = pack_sequence(list(torch.split(values, counts)), enforce_sorted=False)
    order, steps = recurrent_order(np.asarray(counts, np.int32))
    assert steps.tolist() == expected.batch_sizes.tolist()
    # torch may take items of one length in another order; both give each item its own words, step by step
    for step, block in enumerate(np.split(order, np.cumsum(steps)[:-1])):
        begins = np.cumsum(counts) - counts
        assert sorted(block.tolist()) == sorted(int(b) + step for b, n in zip(begins, counts, strict=True) if n > step)
    columns = [np.split(order, np.cumsum(steps))[step].tolist() for step in range(max(counts))]
    for before, after in itertools.pairwise(columns):
        assert [word + 1 for word in before[: len(after)]] == after


def test_nothing_to_answer_is_no_error() -> None:
    batch = plan([None, item([], [])], [3, 2], label_shift=0, recurrent=True)
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
