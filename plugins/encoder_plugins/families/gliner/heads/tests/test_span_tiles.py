"""Spans of many texts for many labels in tiles, against all products at once; and the lists of labels that are kept."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.families.gliner.heads import span_tiles
    from encoder_plugins.families.gliner.heads.label_matrices import LabelMatrices
    from encoder_plugins.families.gliner.heads.span_tiles import Spans
    from encoder_plugins.families.gliner.payload import TOO_MANY

pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, SIZE = 5, 16


class Texts:
    """Texts of a batch with random words and labels, and the candidates of each by all products at once."""

    def __init__(self, words: Sequence[int], columns: int, labels: Sequence[np.ndarray], seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.offsets = np.cumsum([0, *words]).astype(np.int32)
        self.start, self.end = torch.randn(2, sum(words), SIZE, generator=generator)
        self.columns = torch.randn(columns, SIZE, generator=generator) / SIZE**0.5
        self.labels = labels

    def vectors(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (self.start[first] + self.end[last]).relu()
        return found

    def expected(self, text: int, threshold: float) -> dict[tuple[int, int, int], float]:
        begin, end = self.offsets[text : text + 2].tolist()
        found = {}
        for first, width in itertools.product(range(begin, end), range(WIDTH)):
            if first + width < end:
                logits = self.vectors(torch.tensor([first]), torch.tensor([first + width])) @ self.columns.T
                for label, column in enumerate(self.labels[text].tolist()):
                    found[first - begin, width, label] = float(logits[0, column])
        return {place: logit for place, logit in found.items() if logit >= threshold}

    def candidates(self, texts: Sequence[int], thresholds: Sequence[float], **options: Any) -> list[np.ndarray]:
        labels = [self.labels[text] for text in texts]
        return span_tiles.candidates(
            Spans.of(texts, self.offsets, WIDTH),
            self.vectors,
            self.columns,
            np.asarray(thresholds, np.float32),
            span_tiles.classes(labels, [0] * len(texts), len(self.columns)),
            **options,
        )


def places(table: np.ndarray) -> dict[tuple[int, int, int], float]:
    found = {(int(start), int(width), int(label)): float(logit) for start, width, label, logit in table}
    assert len(found) == len(table)
    return found


# one tile for all, tiles of single spans, of single labels, and of parts that divide nothing
@pytest.mark.parametrize("sizes", [(8192, 1 << 23), (1, 7), (64, 64), (10, 170)])
def test_candidates_are_those_of_all_products(sizes: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    labels = [generator.permutation(37)[:count].astype(np.int32) for count in (37, 1, 12, 20)]
    texts = Texts([7, 1, 12, 3], 37, labels)
    thresholds = [0.5, -np.inf, 1.0, np.inf]
    # in another order than in the batch
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [1]):
        chosen = [thresholds[text] for text in order]
        for text, table in zip(order, texts.candidates(order, chosen, sizes=sizes), strict=True):
            expected, found = texts.expected(text, thresholds[text]), places(table)
            assert found.keys() == expected.keys()
            assert list(found.values()) == pytest.approx([expected[place] for place in found], abs=1e-5)
            # by start, width and class
            assert list(found) == sorted(found)


def test_ten_thousand_labels_give_what_a_plain_product_gives() -> None:
    count, words = 10_000, [40, 25]
    whole = np.arange(count, dtype=np.int32)
    texts = Texts(words, count, [whole, whole])
    first, last = (
        torch.tensor(part)
        for part in zip(*((i, i + w) for i in range(40) for w in range(WIDTH) if i + w < 40), strict=True)
    )
    plain = texts.vectors(first, last) @ texts.columns.T
    threshold = float(plain.flatten().kthvalue(plain.numel() - 500).values)
    assert span_tiles.classes([whole, whole], [0, 0], count) is None
    table, none = texts.candidates([0, 1], [threshold, np.inf], sizes=(64, 1 << 17))
    span, label = (plain >= threshold).nonzero(as_tuple=True)
    expected = {(int(first[s]), int(last[s] - first[s]), int(c)) for s, c in zip(span, label, strict=True)}
    # products in tiles round differently: what is next to the threshold may be there or not
    assert len(places(table).keys() ^ expected) <= 2
    assert 498 <= len(table) <= 503
    for start, width, column, logit in table:
        row = texts.vectors(torch.tensor([int(start)]), torch.tensor([int(start + width)])) @ texts.columns[int(column)]
        assert logit == pytest.approx(float(row[0]), abs=1e-5)
    assert none.shape == (0, 4)


def test_of_a_text_with_too_many_candidates_comes_their_number_only() -> None:
    whole = np.arange(30, dtype=np.int32)
    texts = Texts([6, 4], 30, [whole, whole])
    expected = [len(texts.expected(text, 0.0)) for text in range(2)]
    assert expected[0] > expected[1] > 100
    for sizes in ((8192, 1 << 23), (4, 40)):
        many, kept = texts.candidates([0, 1], [0.0, 0.0], most=expected[1], sizes=sizes)
        assert many.tolist() == [[0, 0, TOO_MANY, expected[0]]]
        assert places(kept).keys() == texts.expected(1, 0.0).keys()


def test_short_lists_of_labels_are_put_together_and_long_ones_are_alone() -> None:
    found = span_tiles.groups([0, 1, 0, 2, 3, 1, 4], [30, 40, 500, 40, 20], most=100)
    assert [(list(group.texts), list(group.lists)) for group in found] == [
        ([3], [2]),
        ([0, 2, 1, 5], [0, 1]),
        ([4, 6], [3, 4]),
    ]
    generator = random.Random(0)
    for _ in range(50):
        sizes = [generator.randint(1, 60) for _ in range(generator.randint(1, 9))]
        lists = [generator.randrange(len(sizes)) for _ in range(20)]
        found = span_tiles.groups(lists, sizes, most=50)
        assert sorted(text for group in found for text in group.texts) == list(range(20))
        for group in found:
            assert {lists[text] for text in group.texts} == set(group.lists)
            assert len(group.lists) == 1 or sum(sizes[number] for number in group.lists) <= 50


def test_columns_are_the_labels_of_each_text() -> None:
    own = [np.array([2, 0], np.int32), np.array([0, 1, 2], np.int32)]
    found = span_tiles.classes(own, [0, 3], 6)
    assert found is not None
    assert found.tolist() == [[1, -1, 0, -1, -1, -1], [-1, -1, -1, 0, 1, 2]]
    # the same labels in another order are not the same
    assert span_tiles.classes([np.array([1, 0], np.int32)], [0], 2) is not None
    assert span_tiles.classes([np.array([0, 1], np.int32)] * 3, [0] * 3, 2) is None


def test_lists_are_made_once_as_long_as_there_is_room() -> None:
    made: list[int] = []

    def make(runs: tuple[bytes, ...], like: torch.Tensor) -> torch.Tensor:
        made.append(len(runs))
        return torch.full((len(runs), 2), float(len(runs)), dtype=like.dtype)

    like = torch.zeros(0)
    matrices = LabelMatrices(make, capacity=10 * 8)
    lists = {count: tuple(bytes([number]) for number in range(count)) for count in (1, 3, 4, 5, 11)}
    for count in (3, 4, 3, 1, 5, 3, 4, 11, 4, 11):
        assert matrices.get(tuple(list(lists[count])), like).tolist() == [[count, count]] * count
    # 4 was the oldest when 5 came, 1 and then 5 when 4 came again, and 11 are more than there is room for
    assert made == [3, 4, 1, 5, 4, 11, 11]
    matrices.clear()
    assert len(matrices) == 0
