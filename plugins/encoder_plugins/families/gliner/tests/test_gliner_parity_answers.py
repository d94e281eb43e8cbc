"""How the parity check reads answers: words at one place, exact distances, and messages that quote in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from encoder_plugins.errors import WrongAnswer
from encoder_plugins.families.gliner import parity
from encoder_plugins.families.gliner.parity import PARITY, POOLING, Span
from encoder_plugins.families.gliner.tests.test_gliner_parity import (
    LABELS,
    WIDTH,
    WORDS,
    case,
    drawn,
    entity,
    expected,
    findings,
    scored,
)

# stanza reads one token of this text as two words: French "du" as "de" and "le"
SHARED: dict[str, Any] = {"text": "nu du lu", "words": [[0, 2], [3, 5], [3, 5], [6, 8]], "labels": ["red"]}
TEXT, PLACES = SHARED["text"], SHARED["words"]


def logit(score: float) -> float:
    return float(np.log(score / (1 - score)))


def logits_of(scores: dict[Span, float], *, words: int = WORDS, labels: int = len(LABELS)) -> NDArray[np.float32]:
    """Return logits of the given scores; every other span is far below any threshold."""
    found = np.full((words, WIDTH, labels), -9.0, np.float32)
    for span, score in scores.items():
        found[span] = logit(score)
    return found


def shared_logits(scores: dict[tuple[int, int], float]) -> NDArray[np.float32]:
    return logits_of({(*span, 0): score for span, score in scores.items()}, words=len(PLACES), labels=1)


def shared_entity(first: int, last: int, score: float) -> dict[str, Any]:
    start, end = PLACES[first][0], PLACES[last][1]
    return {"start": start, "end": end, "text": TEXT[start:end], "label": "red", "score": score}


def test_spans_that_begin_or_end_with_a_word_among_several_at_one_place_are_not_requested() -> None:
    wanted = case(**SHARED, measures="scores", span_groups=[0, 1, 2, 3])
    first, last = {"start": 0, "end": 2}, {"start": 6, "end": 8}
    assert PARITY.body([wanted], POOLING)["data"]["input_spans"] == [[first, {"start": 0, "end": 8}], [], [], [last]]
    # whatever the library's scores of the others, none of them is missing
    logits = np.full((len(PLACES), WIDTH, 1), 2.0, np.float32)
    score = float(parity._sigmoid(logits[:1, 0, 0])[0])
    groups = [[shared_entity(0, 0, score), shared_entity(0, 3, score)], [], [], [shared_entity(3, 3, score)]]
    finding, verdict = findings(wanted, logits, {"results": [{"entities": found} for found in groups]})
    assert (verdict.result, finding.notes) == ("Passed", ())
    for group, place, name in ((0, 0, "0:2"), (0, 1, "0:8"), (3, 0, "6:8")):
        fewer = [[*found] for found in groups]
        del fewer[group][place]
        finding, verdict = findings(wanted, logits, {"results": [{"entities": found} for found in fewer]})
        assert verdict.result == "Failed"
        assert finding.notes == (f"{name} (label 0) is missing; its score is {score:.6f}",)


@pytest.mark.parametrize(("score", "span"), [(0.9, (2, 0)), (0.6, (1, 0)), (0.75, (1, 1))])
def test_of_words_at_one_place_an_entity_means_those_whose_score_is_next_to_its_own(
    score: float, span: tuple[int, int]
) -> None:
    logits = shared_logits({(1, 0): 0.6, (1, 1): 0.75, (2, 0): 0.9})
    scores = parity._sigmoid(logits)
    found, probability = parity._read(case(**SHARED), shared_entity(1, 2, score + 0.01), scores)
    assert (found, probability) == ((*span, 0), score + 0.01)


def test_the_answer_about_the_better_of_two_words_at_one_place_needs_no_move() -> None:
    logits = shared_logits({(1, 0): 0.6, (2, 0): 0.9})
    answer = [shared_entity(2, 2, 0.9)]
    wanted = case(**SHARED, flat_ner=True, entities=answer)
    # the library's flat entities are both words: they share a place in the text, and are different words
    finding, _ = findings(wanted, logits, {"entities": answer})
    assert finding.metrics["score_max"] == pytest.approx(0.0, abs=1e-6)
    assert finding.metrics["decoded_shift"] == pytest.approx(0.1, abs=1e-6)


def test_spans_of_groups_that_were_not_requested_are_not_missing() -> None:
    logits = drawn(7)
    for groups in ([0], [1], [3, 1]):
        wanted, results = scored(logits, groups)
        scores = parity._sigmoid(logits)
        assert all(found["start"] // 3 % WIDTH in groups for one in results for found in one["entities"])
        assert {span[0] % WIDTH for span in parity._requested(wanted, scores)} == set(groups)
        finding, verdict = findings(wanted, logits, {"results": results})
        assert (verdict.result, finding.notes) == ("Passed", ())


def test_a_better_entity_that_is_missing_is_explained_when_both_move_half_of_the_way() -> None:
    kept, better = (2, 0, 0), (1, 1, 1)
    scores = parity._sigmoid(logits_of({kept: 0.7, better: 0.9}))
    assert parity.shift(case(), [kept], scores) == pytest.approx(0.1, abs=1e-6)
    # from 0.9 down to the threshold is shorter
    assert parity.shift(case(threshold=0.85), [], scores) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("answered", "score", "note"),
    [
        (False, 0.9, "only the library has 6:11 (label 1); the library's score is +0.400000 from the threshold"),
        (True, 0.2, "only the server has 6:11 (label 1); the library's score is -0.300000 from the threshold"),
    ],
)
def test_an_entity_of_one_side_is_named_with_its_distance(answered: bool, score: float, note: str) -> None:
    logits = logits_of({(2, 1, 1): score})
    there = [entity((2, 1, 1), score)]
    wanted = case(entities=[] if answered else there)
    finding, _ = findings(wanted, logits, {"entities": there if answered else []})
    assert finding.notes == (note,)


def test_an_answer_without_entities_measures_no_score() -> None:
    quiet = logits_of({})
    compared = PARITY.compare(case(), [], expected(quiet))
    assert compared.metrics == {"decoded_shift": 0.0, "noise_shift": 0.0}
    assert compared.notes == ()


def test_a_case_of_entities_is_one_text_however_many_labels_it_has() -> None:
    many = [f"label {number}" for number in range(5_000)]
    assert PARITY.weight(case(labels=many)) == 1
    assert PARITY.weight(case(labels=many, measures="scores", span_groups=[0])) == WORDS * 5_000 // 200


@pytest.mark.parametrize(
    ("start", "end", "text", "label", "score", "message"),
    [
        # no word begins there, or none ends there
        (4, 5, "1", "red", 0.9, "not an entity that this model can find"),
        (3, 4, "w", "red", 0.9, "not an entity that this model can find"),
        (3, 5, "w1", "red", 1.1, "not an entity that this model can find"),
        (3, 5, "w2", "red", 0.9, "an entity's text is not what is at 3 to 5"),
        (3, 5, "w1", "yellow", 0.9, "not an entity of this text"),
        (3, 5, "w1", "red", "high", "not an entity of this text"),
    ],
)
def test_a_wrong_entity_is_refused_by_what_is_wrong(
    start: int, end: int, text: str, label: str, score: object, message: str
) -> None:
    given = {"start": start, "end": end, "text": text, "label": label, "score": score}
    with pytest.raises(WrongAnswer, match=message):
        PARITY.compare(case(), [given], expected(logits_of({})))


def test_what_is_no_text_in_utf_8_is_quoted_in_part() -> None:
    # the verdict has room for two kilobytes
    with pytest.raises(WrongAnswer, match="the answer holds no entities: UnicodeDecodeError") as caught:
        PARITY.outputs(b"\xff" * 9_000, [case()], POOLING)
    assert len(str(caught.value)) == 200
