"""Scored words to entities, compared with the library's own decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from encoder_plugins.families.gliner import decode, decode_words
from encoder_plugins.families.gliner.decode_words import TooManySpans
from encoder_plugins.families.gliner.tests.library import call

Entity = tuple[int, int, int, float]


def planted(seed: int, words: int, labels: int) -> NDArray[np.float32]:
    """Return logits `[words, labels, 3]` with runs of high ones, and with many that are equal."""
    generator = np.random.default_rng(seed)
    steps = generator.integers(-6, 7, (words, labels, 3)).astype(np.float32)
    found = steps / np.float32(generator.choice([1.0, 2.0, 3.0]))
    for _ in range(generator.integers(0, 4)):
        first = int(generator.integers(words))
        last = min(words, first + int(generator.integers(1, 9)))
        label = int(generator.integers(labels))
        found[first:last, label, 2] = generator.choice([1.0, 2.0])
        found[first, label, 0] = found[last - 1, label, 1] = 2.0
    return found


def ours(logits: NDArray[np.float32], given_spans: list[tuple[int, int]] | None = None, **mode: Any) -> list[Entity]:
    """Decode as the processor does, from rows in another order than the text's."""
    words, labels, _ = logits.shape
    order = np.random.default_rng(0).permutation(words * labels)
    word, label = np.divmod(order, labels)
    scores = torch.sigmoid(torch.from_numpy(logits)).numpy().reshape(-1, 3)[order]
    allowed = None if given_spans is None else frozenset(given_spans)
    found = decode_words.spans(
        word, label, scores, words=words, threshold=mode["threshold"], most=10**6, allowed=allowed
    )
    kept = decode.search(
        found.start, found.end, found.score, words=words, flat=mode["flat_ner"], several=mode["multi_label"]
    )
    columns = (found.start[kept], found.end[kept], found.label[kept], found.score[kept])
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**31), min_size=50, max_size=50),
    words=st.integers(1, 14),
    labels=st.integers(1, 4),
    threshold=st.sampled_from([0.0, 0.1, 0.3, 0.5, float(torch.sigmoid(torch.tensor(1.0))), 0.9, 1.0]),
    flat=st.booleans(),
    several=st.booleans(),
    some=st.booleans(),
)
def test_entities_and_their_order_are_the_librarys(
    seeds: list[int], words: int, labels: int, threshold: float, flat: bool, several: bool, some: bool
) -> None:
    mode = {"threshold": threshold, "flat_ner": flat, "multi_label": several}
    logits = [planted(seed, words, labels) for seed in seeds]
    chosen: list[list[tuple[int, int]] | None] = [None] * len(seeds)
    if some:
        generators = [np.random.default_rng(seed) for seed in seeds]
        chosen = [
            [(first, min(first + 2, words - 1)) for first in generator.integers(0, words, 4).tolist()]
            for generator in generators
        ]
    expected = call("decode_words", logits, chosen, **mode)
    for values, given_spans, theirs in zip(logits, chosen, expected, strict=True):
        # scores too: they are one of the numbers that both had, not a sum of them
        assert ours(values, given_spans, **mode) == [tuple(entity) for entity in theirs]


def test_of_equal_scores_the_first_start_label_and_then_the_shortest_is_the_better() -> None:
    logits = np.full((4, 2, 3), 2.0, np.float32)
    mode: dict[str, Any] = {"threshold": 0.5, "flat_ner": True, "multi_label": False}
    assert [entity[:3] for entity in ours(logits, **mode)] == [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 3, 0)]
    # no word but the last two is an end
    logits[:2, :, 1] = -9.0
    assert [entity[:3] for entity in ours(logits, **mode)] == [(0, 2, 0), (3, 3, 0)]


def test_a_long_span_has_the_lowest_score_of_all_its_words() -> None:
    logits = np.full((1000, 1, 3), -9.0, np.float32)
    logits[:, 0, 2] = np.random.default_rng(1).uniform(1, 2, 1000)
    logits[3, 0, 0] = logits[998, 0, 1] = 5.0
    ((start, end, _, score),) = ours(logits, threshold=0.5, flat_ner=True, multi_label=False)
    assert (start, end) == (3, 998)
    assert score == float(torch.sigmoid(torch.from_numpy(logits[3:999, 0, 2]).min()))


@pytest.mark.parametrize("allowed", [None, frozenset((first, first) for first in range(40))])
def test_too_many_spans_are_counted_and_not_made(allowed: frozenset[tuple[int, int]] | None) -> None:
    word = np.arange(40)
    scores = np.full((40, 3), 0.9, np.float32)
    most = 820 if allowed is None else 40
    arguments: dict[str, Any] = {"words": 40, "threshold": 0.5, "allowed": allowed}
    found = decode_words.spans(word, np.zeros(40, np.int64), scores, most=most, **arguments)
    assert len(found.start) == most
    with pytest.raises(TooManySpans, match="820 spans"):
        decode_words.spans(word, np.zeros(40, np.int64), scores, most=most - 1, **arguments)


def test_given_spans_that_the_scores_do_not_permit_do_not_count() -> None:
    labels, words = 30, 20
    generator = np.random.default_rng(2)
    scores = np.full((words * labels, 3), 0.9, np.float32)
    scores[:, 0] = np.where(generator.random(words * labels) < 0.1, 0.9, 0.1)
    label, word = np.divmod(np.arange(words * labels), words)
    # one of them ends behind the words that are read, and begins where no other does
    allowed = {(first, last) for first in range(3, words) for last in range(first, words, 2)} | {(0, words + 2)}
    arguments: dict[str, Any] = {"words": words, "threshold": 0.5}
    every = decode_words.spans(word, label, scores, most=10**6, **arguments)
    wanted = [span in allowed for span in zip(every.start.tolist(), every.end.tolist(), strict=True)]
    most = len(every.start)
    assert 0 < sum(wanted) < most < len(allowed) * labels
    found = decode_words.spans(word, label, scores, most=most, allowed=allowed, **arguments)
    for name in ("start", "end", "label", "score"):
        assert getattr(found, name).tolist() == getattr(every, name)[wanted].tolist()


def test_nothing_scored_is_nothing_found() -> None:
    nothing = np.zeros(0, np.int64)
    for allowed in (None, frozenset({(0, 1)})):
        found = decode_words.spans(
            nothing, nothing, np.zeros((0, 3), np.float32), words=3, threshold=0.5, most=9, allowed=allowed
        )
        assert not found.start.size
