"""How answers are compared with the library's: its own decoder says what is right."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from encoder_plugins.errors import Unsupported, WrongAnswer
from encoder_plugins.families.gliner import parity
from encoder_plugins.families.gliner.parity import LOW, PARITY, Span
from encoder_plugins.parity import verdict as comparison
from encoder_plugins.parity.verdict import Batch, Reference

with warnings.catch_warnings():
    # torch deprecates what transformers does at import
    warnings.simplefilter("ignore")
    from gliner.decoding import SpanDecoder

WORDS, WIDTH, LABELS = 9, 4, ["red", "green", "blue"]
TEXT = " ".join(f"w{number}" for number in range(WORDS))
BOUNDS = [[3 * number, 3 * number + 2] for number in range(WORDS)]
TOLERANCE = PARITY.tolerances["float32"]


def case(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": "c",
        "ask": "entities",
        "text": TEXT,
        "labels": LABELS,
        "threshold": 0.5,
        "flat_ner": True,
        "multi_label": False,
        "overflow": "refuse",
        "width": WIDTH,
        "words": BOUNDS,
        "families": [],
        "entities": [],
        "low": [],
    }
    return found | changes


def drawn(seed: int) -> NDArray[np.float32]:
    """Return logits, of spans beyond the last word too: the library scores those, and never takes them."""
    return np.random.default_rng(seed).normal(-0.5, 2, (WORDS, WIDTH, len(LABELS))).astype(np.float32)


def library_spans(asked: dict[str, Any], logits: NDArray[np.float32]) -> dict[Span, float]:
    """Decode logits with the library."""
    (found,) = SpanDecoder(None).decode(
        [TEXT.split()],
        {number + 1: label for number, label in enumerate(LABELS)},
        torch.from_numpy(logits)[None],
        flat_ner=asked["flat_ner"],
        threshold=asked["threshold"],
        multi_label=asked["multi_label"],
    )
    return {(span.start, span.end - span.start, LABELS.index(span.entity_type)): span.score for span in found}


def entity(span: Span, score: float) -> dict[str, Any]:
    start, end = BOUNDS[span[0]][0], BOUNDS[span[0] + span[1]][1]
    return {"start": start, "end": end, "text": TEXT[start:end], "label": LABELS[span[2]], "score": score}


MODES = [
    {"flat_ner": flat, "multi_label": several, "threshold": threshold}
    for flat in (True, False)
    for several in (True, False)
    for threshold in (0.0, 0.3, 0.5)
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(5))
def test_what_the_library_decodes_needs_no_move(mode: dict[str, Any], seed: int) -> None:
    asked, logits = case(**mode), drawn(seed)
    found = library_spans(asked, logits)
    assert found
    assert parity.shift(asked, found.keys(), parity._sigmoid(logits)) == 0.0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), mode=st.sampled_from(MODES), size=st.sampled_from([1e-4, 1e-2, 0.1]))
def test_what_it_decodes_of_scores_that_moved_needs_no_larger_move(
    seed: int, mode: dict[str, Any], size: float
) -> None:
    asked, logits = case(**mode), drawn(seed)
    noise = np.random.default_rng(seed + 1).uniform(-size, size, logits.shape)
    scores = parity._sigmoid(logits)
    moved_scores = np.clip(scores + noise, 1e-6, 1 - 1e-6)
    moved = np.log(moved_scores / (1 - moved_scores)).astype(np.float32)
    chosen = library_spans(asked, moved)
    assert parity.shift(asked, chosen.keys(), scores) <= size + 1e-5


def test_an_entity_that_nothing_explains_needs_a_large_move() -> None:
    asked, logits = case(), drawn(1)
    scores = parity._sigmoid(logits)
    right = library_spans(asked, logits)
    best = max(right, key=lambda span: right[span])
    without = {span: score for span, score in right.items() if span != best}
    assert parity.shift(asked, without.keys(), scores) > 0.1
    worst = tuple(int(axis) for axis in np.unravel_index(np.argmin(scores[:5]), scores[:5].shape))
    assert parity.shift(asked, [worst], scores) > 0.3
    both = [best, (best[0], best[1], (best[2] + 1) % 3)]
    assert parity.shift(asked, both, scores) == math.inf


@pytest.mark.parametrize("words", [1, 3, 4, 9, 13])
def test_the_families_hold_every_span_once_and_none_that_cross(words: int) -> None:
    bounds = [[3 * number, 3 * number + 2] for number in range(words)]
    seen = []
    for family in range(WIDTH):
        spans = [
            (span["start"] // 3, (span["end"] - 2) // 3)
            for span in parity._spans({"words": bounds, "width": WIDTH}, family)
        ]
        seen += spans
        for first, last in spans:
            for begin, end in spans:
                apart = last < begin or end < first
                within = (first <= begin and end <= last) or (begin <= first and last <= end)
                assert apart or within
    assert sorted(seen) == [(first, last) for first in range(words) for last in range(first, min(first + WIDTH, words))]


def findings(asked: dict[str, Any], logits: NDArray[np.float32], answer: Any) -> Any:
    reference = Reference("sha256:a", "sha256:r", "deberta_gliner", (asked,), {"c": logits})
    found = comparison.examine(PARITY, reference, "alone", Batch((asked,), "float"), answer)
    return found[0], comparison.judge(found, TOLERANCE, reference, {})


def right_answer(asked: dict[str, Any], logits: NDArray[np.float32]) -> list[dict[str, Any]]:
    return [entity(span, score) for span, score in library_spans(asked, logits).items()]


def test_the_librarys_own_answer_passes() -> None:
    logits = drawn(3)
    asked = case(entities=right_answer(case(), logits))
    finding, verdict = findings(asked, logits, {"entities": asked["entities"], "usage": {}})
    assert verdict.result == "Passed"
    assert finding.notes == ()
    assert finding.metrics["decoded_shift"] == 0.0
    assert finding.metrics["score_error"] < 1e-6


def test_a_score_that_is_off_fails_with_its_number() -> None:
    logits = drawn(3)
    answer = right_answer(case(), logits)
    answer[0]["score"] -= 1e-4
    _, verdict = findings(case(), logits, {"entities": answer})
    assert verdict.result == "Failed"
    assert float(verdict.metrics[0]["value"]) == pytest.approx(1e-4, rel=0.02)


def test_a_missing_entity_fails_and_is_named_with_its_distance_and_without_its_text() -> None:
    logits = drawn(3)
    answer = right_answer(case(), logits)
    asked = case(entities=answer)
    finding, verdict = findings(asked, logits, {"entities": answer[1:]})
    assert verdict.result == "Failed"
    assert finding.metrics["decoded_shift"] > TOLERANCE[2].limit
    (note,) = finding.notes
    assert note.startswith(f"only the library has {answer[0]['start']}:{answer[0]['end']} (label ")
    assert "from the threshold" in note
    assert answer[0]["text"] not in note


@pytest.mark.parametrize(
    "change",
    [
        {"start": 1},
        {"end": 1},
        {"text": "other"},
        {"label": "yellow"},
        {"score": 1.5},
        {"score": float("nan")},
        {"score": None},
        {"start": "0"},
        {"end": BOUNDS[WIDTH + 2][1], "start": 0, "text": TEXT[: BOUNDS[WIDTH + 2][1]]},
    ],
)
def test_what_is_no_entity_of_the_text_is_wrong(change: dict[str, Any]) -> None:
    logits = drawn(3)
    answer = right_answer(case(), logits)
    answer[0] = answer[0] | change
    finding, verdict = findings(case(), logits, {"entities": answer})
    assert finding.wrong
    assert verdict.result == "Failed"


@pytest.mark.parametrize("answer", [None, {}, {"entities": None}, {"entities": 3}, {"results": []}, []])
def test_an_answer_without_entities_is_wrong(answer: Any) -> None:
    assert findings(case(), drawn(3), answer)[0].wrong


def test_entities_twice_or_in_another_order_are_wrong() -> None:
    logits = drawn(3)
    answer = right_answer(case(), logits)
    assert len(answer) >= 2
    assert "twice" in findings(case(), logits, {"entities": [answer[0], *answer]})[0].wrong
    assert "order" in findings(case(), logits, {"entities": answer[::-1]})[0].wrong


def scored(logits: NDArray[np.float32], families: list[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a case that asks for scores, and the right results: one list for each family."""
    asked = case(ask="scores", families=families)
    scores = parity._sigmoid(logits)
    spans = [span for span in parity._asked(asked, scores) if scores[span] > LOW]
    return asked, [
        {"entities": [entity(span, float(scores[span])) for span in spans if span[0] % WIDTH == family]}
        for family in families
    ]


def test_scores_are_asked_family_by_family_and_compared_span_by_span() -> None:
    logits = drawn(7)
    asked, results = scored(logits, list(range(WIDTH)))
    data = PARITY.data([asked], "float")
    assert len(data["texts"]) == len(data["input_spans"]) == len(data["labels_per_text"]) == WIDTH
    assert (data["threshold"], data["flat_ner"], data["multi_label"]) == (LOW, False, True)
    assert PARITY.weight(asked) == WIDTH
    _, verdict = findings(asked, logits, {"results": results})
    assert verdict.result == "Passed"
    results[1]["entities"][0]["score"] += 3e-5
    assert findings(asked, logits, {"results": results})[1].result == "Failed"


def test_a_span_that_is_missing_counts_with_its_distance() -> None:
    logits = drawn(7)
    asked, results = scored(logits, [0])
    gone = max(results[0]["entities"], key=lambda found: float(found["score"]))
    results[0]["entities"].remove(gone)
    finding, verdict = findings(asked, logits, {"results": results})
    assert verdict.result == "Failed"
    assert finding.metrics["score_error"] == pytest.approx(gone["score"] - LOW)
    assert "is missing" in finding.notes[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_scores_of_another_model_fail_whatever_the_number_format(dtype: str) -> None:
    asked, _ = scored(drawn(7), list(range(WIDTH)))
    _, results = scored(drawn(8), list(range(WIDTH)))
    reference = Reference("sha256:a", "sha256:r", "deberta_gliner", (asked,), {"c": drawn(7)})
    found = comparison.examine(PARITY, reference, "alone", Batch((asked,), "float"), {"results": results})
    assert comparison.judge(found, PARITY.tolerances[dtype], reference, {}).result == "Failed"
    assert found[0].metrics["score_rms"] > 0.2


def test_too_few_results_are_wrong() -> None:
    logits = drawn(7)
    asked, results = scored(logits, [0, 1])
    assert "2 texts were asked" in findings(asked, logits, {"results": results[:1]})[0].wrong


def test_requests_never_hold_more_texts_than_a_server_takes() -> None:
    cases: list[Any] = [case(id=str(number), ask="scores", families=list(range(WIDTH))) for number in range(100)]
    cases += [case(id=f"e{number}") for number in range(300)]
    for step in comparison.plan(PARITY, cases):
        assert sum(len(batch.cases) for batch in step.batches) == 400
        for batch in step.batches:
            data = PARITY.data(batch.cases, "float")
            assert len(data.get("texts", [0])) <= comparison.MOST_TEXTS


def test_cases_of_many_labels_are_asked_in_smaller_requests() -> None:
    many = case(ask="scores", families=list(range(WIDTH)), labels=[f"label {number}" for number in range(500)])
    steps = comparison.plan(PARITY, [many | {"id": str(number)} for number in range(10)])
    # 9 words, 4 widths, 500 labels: 18 000 pairs
    assert {len(batch.cases) for batch in steps[1].batches} == {2}
    assert len(PARITY.data([many, many], "float")["texts"]) == 2 * WIDTH
    answer = {"results": [{"entities": [{"number": number}]} for number in range(2 * WIDTH)]}
    first, second = PARITY.outputs(answer, [many, many], "float")
    assert [found["number"] for found in first + second] == list(range(2 * WIDTH))


def test_the_built_in_cases_are_those_that_matter() -> None:
    found = {one["id"]: one for one in parity.cases(384)}
    assert len(found) == len(parity.cases(384))
    assert {one["threshold"] for one in found.values()} >= {0.0, 0.3, 0.5, 1.0}
    assert {(one["flat_ner"], one["multi_label"]) for one in found.values()} == {
        (flat, several) for flat in (True, False) for several in (True, False)
    }
    assert len(found["many-labels"]["labels"]) >= 30
    assert len(found["one-label"]["labels"]) == 1
    assert len(set(found["duplicate-labels"]["labels"])) < len(found["duplicate-labels"]["labels"])
    assert not found["no-word"]["text"].strip()
    assert len(found["overlong"]["text"].split()) > 384
    # a text of so many words would take minutes to record
    assert "overlong" not in {one["id"] for one in parity.cases(8192)}


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ([{"labels": ["a"]}], "text"),
        ([{"text": "a"}], "labels"),
        ([{"text": "", "labels": ["a"]}], "text"),
        ([{"text": "a", "labels": []}], "labels"),
        ([{"text": "a", "labels": "person"}], "labels"),
        ([{"text": "a", "labels": ["a"], "threshold": 2}], "threshold"),
        ([{"text": "a", "labels": ["a"], "threshold": True}], "threshold"),
        ([{"text": "a", "labels": ["a"], "flat_ner": 1}], "flat_ner"),
        ([{"text": "a", "labels": ["a"], "flat": True}], "flat"),
        ([{"text": "a", "labels": ["a"], "id": "short"}], "short"),
    ],
)
def test_a_users_case_that_is_none_is_refused_by_name(inputs: Any, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        parity.user_cases(inputs, parity.cases(100))


def test_a_users_case_gets_the_defaults_of_a_request() -> None:
    (found,) = parity.user_cases([{"text": "a", "labels": ["b"]}], [])
    assert (found["id"], found["threshold"], found["flat_ner"], found["multi_label"]) == ("user-0", 0.5, True, False)


def test_wrong_answers_are_told_apart_from_failures() -> None:
    with pytest.raises(WrongAnswer):
        PARITY.compare(case(), [{"start": 0}], drawn(0))
