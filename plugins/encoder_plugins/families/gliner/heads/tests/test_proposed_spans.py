"""Spans that words propose, against gliner's own forward pass and against all spans one by one."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.backbones import weight_loading
    from encoder_plugins.families.gliner import payload
    from encoder_plugins.families.gliner.heads import proposed_spans
    from encoder_plugins.families.gliner.heads.layout import head_layout
    from encoder_plugins.families.gliner.heads.tests.compared_heads import Library, answers_of, config
    from encoder_plugins.families.gliner.heads.tests.library_head import ENCODER, text
    from encoder_plugins.families.gliner.heads.token import GlinerTokenPooler
    from encoder_plugins.families.gliner.payload import TOO_MANY

pytestmark = pytest.mark.filterwarnings("ignore")

# the labels of one are more than those of another, and the words of one all without tokens
TEXTS = [
    text(7, 3, seed=1),
    text(1, 1, seed=2),
    text(23, 6, seed=3),
    text(9, 2, lost=4, seed=4),
    text(3, 5, lost=3, seed=5),
    text(60, 1, seed=6),
]


@pytest.mark.parametrize("switches", [{}, {"lstm_layers": 0}])
@pytest.mark.parametrize("threshold", [0.0, 0.2])
def test_candidates_are_gliners_in_its_order(threshold: float, switches: dict[str, Any]) -> None:
    settings = config(head="token", represent_spans=True, **switches)
    library = Library(settings)
    ours = GlinerTokenPooler(ENCODER, settings)
    weight_loading.load(ours.head, library.tensors().items(), head_layout(ENCODER, settings))
    found = answers_of(ours, TEXTS, [one.extra(threshold) for one in TEXTS])
    several = 0
    for rows, one in zip(found, TEXTS, strict=True):
        places, logits = library.proposed(one, threshold)
        first = {place: row for row, place in reversed(list(enumerate(map(tuple, places.tolist()))))}
        several += len(places) - len(first)
        expected = [
            (begin, last - begin, label, logits[row, label])
            for (begin, last), row in sorted(first.items(), key=lambda item: item[1])
            for label in range(logits.shape[1])
            if 1 / (1 + np.exp(-np.float64(logits[row, label]))) > threshold
        ]
        assert [tuple(row) for row in rows[:, :3].astype(int).tolist()] == [row[:3] for row in expected]
        np.testing.assert_allclose(rows[:, 3], [row[3] for row in expected], atol=2e-4)
    assert (several, sum(map(len, found))) > {0.0: (50, 1000), 0.2: (5, 50)}[threshold]


def drawn(
    words: list[int], labels: list[int], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return what ``propose`` takes of random logits, and the logits `[words, labels, 3]` of each text."""
    generator = np.random.default_rng(seed)
    logits = [
        generator.normal(0.5, 1.5, (own, names, 3)).astype(np.float32) for own, names in zip(words, labels, strict=True)
    ]
    every = np.concatenate([values.reshape(-1, 3) for values in logits])
    # some that cannot be inside do not come to the host
    pairs = np.flatnonzero(every[:, 2] >= -1.0)
    offsets = np.cumsum([0, *words]).astype(np.int32)
    return pairs, every[pairs], offsets, np.asarray(labels, np.int32), logits


def one_by_one(values: np.ndarray, threshold: float) -> tuple[list[tuple[int, int]], int]:
    """Return the spans of a text, and how often they are proposed."""
    start, end, inside = np.moveaxis(torch.sigmoid(torch.from_numpy(values)).numpy() > np.float32(threshold), 2, 0)
    words, labels = start.shape
    spans = [
        (first, last)
        for first, label, last in itertools.product(range(words), range(labels), range(words))
        if first <= last and start[first, label] and end[last, label] and inside[first : last + 1, label].all()
    ]
    return list(dict.fromkeys(spans)), len(spans)


@pytest.mark.parametrize("most", [1 << 20, 60, 9])
def test_each_span_is_proposed_once_and_a_text_with_too_many_is_left_out(most: int) -> None:
    words, labels = [9, 1, 14, 5, 30, 2], [3, 1, 2, 4, 2, 1]
    thresholds = [0.3, 0.5, 0.6, 0.3, 0.5, 0.9999]
    pairs, logits, offsets, names, every = drawn(words, labels, 3)
    found = proposed_spans.propose(pairs, logits, thresholds, words=offsets, labels=names, most=most)
    dropped = 0
    for text_, (values, threshold) in enumerate(zip(every, thresholds, strict=True)):
        spans, count = one_by_one(values, threshold)
        assert found.counts[text_] == count
        dropped += count > most
        own = np.stack([found.begins[text_], found.ends[text_]], 1) - offsets[text_]
        assert [tuple(span) for span in own.tolist()] == ([] if count > most else spans)
    assert dropped == {1 << 20: 0, 60: 0, 9: 3}[most]


@torch.inference_mode()
def test_too_many_proposals_have_a_row_with_their_number_and_no_other_text_suffers() -> None:
    settings = config(head="token", represent_spans=True)
    library = Library(settings)
    ours = GlinerTokenPooler(ENCODER, settings)
    weight_loading.load(ours.head, library.tensors().items(), head_layout(ENCODER, settings))
    words = torch.randn(12, settings.hidden_size, generator=torch.Generator().manual_seed(0))
    vectors = torch.randn(4, settings.hidden_size, generator=torch.Generator().manual_seed(1))
    pairs, logits, offsets, names, every = drawn([7, 5], [3, 1], 1)
    rows = [np.array([2, 0, 3], np.int32), np.array([1], np.int32)]
    wanted = {}
    for most in (1 << 20, one_by_one(every[0], 0.2)[1] - 1):
        proposed = proposed_spans.propose(pairs, logits, [0.2, 0.2], words=offsets, labels=names, most=most)
        cuts = np.full(2, -np.inf, np.float32)
        wanted[most] = proposed_spans.candidates(ours.head, words, vectors, rows, proposed, cuts, most=most)  # type: ignore[arg-type]
    (whole, other), (cut, same) = wanted.values()
    assert len(whole) == 3 * len(one_by_one(every[0], 0.2)[0])
    assert cut.tolist() == [[0, 0, TOO_MANY, one_by_one(every[0], 0.2)[1]]]
    assert len(other) > 0
    # a product of another number of rows may round another way: some units in the last place of values around 6
    np.testing.assert_allclose(other, same, rtol=4e-6, atol=1e-6)
    assert other.shape[1] == payload.COLUMNS
