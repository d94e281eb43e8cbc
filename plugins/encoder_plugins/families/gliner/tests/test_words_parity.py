"""How the answers of models that score words are compared with the library's: its own decoder says what is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from encoder_plugins.families.gliner import parity
from encoder_plugins.families.gliner.tests.library import call

WORDS, LABELS = 9, 3
MODES = [
    {"flat_ner": flat, "multi_label": several, "threshold": threshold}
    for flat in (True, False)
    for several in (True, False)
    for threshold in (0.0, 0.3, 0.5)
]


def drawn_words(seed: int) -> NDArray[np.float32]:
    """Return logits of words, `[words, labels, 3]`."""
    return np.random.default_rng(seed).normal(0.7, 1.5, (WORDS, LABELS, 3)).astype(np.float32)


def test_a_span_of_scored_words_has_the_lowest_of_their_scores() -> None:
    scores = parity._sigmoid(drawn_words(0))
    for width in (1, 4, WORDS, WORDS + 3):
        found = parity.span_scores(scores, width)
        assert found.shape == (WORDS, width, LABELS)
        for first, further in np.ndindex(WORDS, width):
            last = first + further
            if last >= WORDS:
                assert not found[first, further].any()
                continue
            inside = scores[first : last + 1, :, 2].min(0)
            assert (
                found[first, further] == np.minimum(np.minimum(scores[first, :, 0], scores[last, :, 1]), inside)
            ).all()


@pytest.mark.parametrize("mode", MODES)
def test_what_the_library_decodes_of_scored_words_needs_no_move(mode: dict[str, Any]) -> None:
    wanted, logits = mode | {"width": WORDS, "by_word": True}, [drawn_words(seed) for seed in range(5)]
    decoded = call("decode_words", logits, [None] * len(logits), **mode)
    for values, entities in zip(logits, decoded, strict=True):
        chosen = {(start, end - start, label) for start, end, label, _ in entities}
        assert chosen
        scores, likely = parity._scores(wanted, {"logits": values})
        assert likely is scores
        assert parity.shift(wanted, chosen, scores) == 0.0
        # one that is lost has to be explained by scores that are elsewhere
        best = max(chosen, key=lambda span: scores[span])
        assert parity.shift(wanted, chosen - {best}, scores) > 1e-4


def decoded_spans(logits: NDArray[np.float32], spans: NDArray[np.float32], **mode: Any) -> set[tuple[int, int, int]]:
    """Return what the library decodes where words propose spans, whose logits are `[words, width, labels]`."""
    found = call("decode_proposed", logits, spans, **mode)
    return {(start, end - start, label) for start, end, label, _ in found}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_what_the_library_decodes_of_proposed_spans_needs_no_move(mode: dict[str, Any], seed: int) -> None:
    wanted = mode | {"width": WORDS, "by_word": True}
    logits = drawn_words(seed)
    spans = np.random.default_rng(seed + 9).normal(0.3, 2, (WORDS, WORDS, LABELS)).astype(np.float32)
    scores, likely = parity._scores(wanted, {"logits": logits, "span_logits": spans})
    chosen = decoded_spans(logits, spans, **mode)
    assert chosen
    assert parity.shift(wanted, chosen, scores, likely) == 0.0
    best = max(chosen, key=lambda span: scores[span])
    assert parity.shift(wanted, chosen - {best}, scores, likely) > 1e-4
    # a span that no label proposes is none, whatever its own score
    lost = max(np.ndindex(scores.shape), key=lambda span: scores[span] - likely[span])
    assert scores[lost] > 0.5 + likely[lost]
    assert parity.shift(wanted, [lost], scores, likely) >= mode["threshold"] - likely[lost]
