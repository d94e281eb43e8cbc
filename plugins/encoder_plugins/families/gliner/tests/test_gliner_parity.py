"""How answers are compared with the library's: its own decoder says what is right."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from encoder_plugins.artifact.reference import Reference
from encoder_plugins.errors import Unsupported, WrongAnswer
from encoder_plugins.families.gliner import cases, parity
from encoder_plugins.families.gliner.cases import LOW
from encoder_plugins.families.gliner.parity import PARITY, POOLING, Span
from encoder_plugins.families.gliner.tests.library import call
from encoder_plugins.parity import plan as plans
from encoder_plugins.parity import verdict as verdicts
from encoder_plugins.parity.plan import Batch

WORDS, WIDTH, LABELS = 9, 4, ["red", "green", "blue"]
TEXT = " ".join(f"w{number}" for number in range(WORDS))
BOUNDS = [[3 * number, 3 * number + 2] for number in range(WORDS)]
TOLERANCE = PARITY.tolerances["float32"]


def case(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": "c",
        "measures": "entities",
        "text": TEXT,
        "labels": LABELS,
        "threshold": 0.5,
        "flat_ner": True,
        "multi_label": False,
        "overflow": "refuse",
        "width": WIDTH,
        "words": BOUNDS,
        "span_groups": [],
        "entities": [],
    }
    return found | changes


def drawn(seed: int) -> NDArray[np.float32]:
    """Return logits, of spans beyond the last word too: the library scores those, and never takes them."""
    return np.random.default_rng(seed).normal(-0.5, 2, (WORDS, WIDTH, len(LABELS))).astype(np.float32)


def library_spans(wanted: dict[str, Any], logits: NDArray[np.float32]) -> dict[Span, float]:
    """Decode logits with the library."""
    found = call(
        "decode",
        logits,
        words=WORDS,
        names={number + 1: label for number, label in enumerate(LABELS)},
        flat_ner=wanted["flat_ner"],
        threshold=wanted["threshold"],
        multi_label=wanted["multi_label"],
    )
    return {(start, end - start, LABELS.index(label)): score for start, end, label, score in found}


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
    wanted, logits = case(**mode), drawn(seed)
    found = library_spans(wanted, logits)
    assert found
    assert parity.shift(wanted, found.keys(), parity._sigmoid(logits)) == 0.0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), mode=st.sampled_from(MODES), size=st.sampled_from([1e-4, 1e-2, 0.1]))
def test_what_it_decodes_of_scores_that_moved_needs_no_larger_move(
    seed: int, mode: dict[str, Any], size: float
) -> None:
    wanted, logits = case(**mode), drawn(seed)
    noise = np.random.default_rng(seed + 1).uniform(-size, size, logits.shape)
    scores = parity._sigmoid(logits)
    moved_scores = np.clip(scores + noise, 1e-6, 1 - 1e-6)
    moved = np.log(moved_scores / (1 - moved_scores)).astype(np.float32)
    chosen = library_spans(wanted, moved)
    assert parity.shift(wanted, chosen.keys(), scores) <= size + 1e-5


def test_an_entity_that_nothing_explains_needs_a_large_move() -> None:
    wanted, logits = case(), drawn(1)
    scores = parity._sigmoid(logits)
    right = library_spans(wanted, logits)
    best = max(right, key=lambda span: right[span])
    without = {span: score for span, score in right.items() if span != best}
    assert parity.shift(wanted, without.keys(), scores) > 0.1
    worst = tuple(int(axis) for axis in np.unravel_index(np.argmin(scores[:5]), scores[:5].shape))
    assert parity.shift(wanted, [worst], scores) > 0.3
    both = [best, (best[0], best[1], (best[2] + 1) % 3)]
    assert parity.shift(wanted, both, scores) == math.inf


@pytest.mark.parametrize("score", [0.001, 0.3, 0.49])
def test_an_entity_below_the_threshold_needs_its_distance(score: float) -> None:
    logits = np.full((WORDS, WIDTH, len(LABELS)), -9.0, np.float32)
    logits[2, 1, 0] = np.log(score / (1 - score))
    scores = parity._sigmoid(logits)
    # nothing else is in its way, and the library has nothing that is missing
    assert parity.shift(case(), [(2, 1, 0)], scores) == pytest.approx(0.5 - score, abs=1e-6)
    finding, verdict = findings(case(), logits, {"entities": [entity((2, 1, 0), score)]})
    assert verdict.result == "Failed"
    # in units of what the library loses, or of the least that counts
    lost = np.abs(parity._sigmoid(expected(logits)["logits_bfloat16"]) - scores).max()
    assert finding.metrics["noise_shift"] == pytest.approx((0.5 - score) / max(lost, 1e-3), rel=1e-4)
    assert "shift that explains the entities" in verdict.message


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


def expected(logits: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return what a recorder returns: the library in bfloat16 is off by some thousandths."""
    noise = np.random.default_rng(99).normal(0, 0.02, logits.shape).astype(np.float32)
    return {"logits": logits, "logits_bfloat16": logits + noise}


def examined(wanted: dict[str, Any], logits: NDArray[np.float32], answer: Any) -> Any:
    reference = Reference(
        artifact="sha256:a",
        digest="sha256:r",
        plugin="deberta_gliner",
        cases=(wanted,),
        expected={"c": expected(logits)},
    )
    content = json.dumps({"data": answer}).encode()
    found = verdicts.examine(PARITY, reference, "alone", Batch((wanted,), POOLING), content)
    return reference, [*found, *verdicts.pooled(PARITY, "alone", found)]


def findings(wanted: dict[str, Any], logits: NDArray[np.float32], answer: Any, dtype: str = "float32") -> Any:
    """Return the finding of one case, and the verdict over the thresholds that such a case can measure."""
    reference, found = examined(wanted, logits, answer)
    measured = {name for one in found for name in one.metrics}
    tolerance = tuple(limit for limit in PARITY.tolerances[dtype] if limit.metric in measured) or TOLERANCE
    return found[0], verdicts.judge(found, tolerance, reference, {})


def right_answer(wanted: dict[str, Any], logits: NDArray[np.float32]) -> list[dict[str, Any]]:
    return [entity(span, score) for span, score in library_spans(wanted, logits).items()]


def test_the_librarys_own_answer_passes() -> None:
    logits = drawn(3)
    wanted = case(entities=right_answer(case(), logits))
    finding, verdict = findings(wanted, logits, {"entities": wanted["entities"], "usage": {}})
    assert verdict.result == "Passed"
    assert finding.notes == ()
    assert finding.metrics["decoded_shift"] == 0.0
    assert finding.metrics["score_max"] < 1e-6


def test_entities_that_begin_with_the_same_word_are_in_order() -> None:
    logits = np.full((WORDS, WIDTH, len(LABELS)), -9.0, np.float32)
    logits[2, 0, :2] = logits[2, 2, 2] = 3.0
    wanted = case(multi_label=True, flat_ner=False)
    answer = right_answer(wanted, logits)
    assert len(answer) == 3
    assert findings(wanted | {"entities": answer}, logits, {"entities": answer})[1].result == "Passed"


def test_cases_with_scores_share_a_request_whatever_their_options_and_others_do_not() -> None:
    scores = case(measures="scores")
    for option in ({"threshold": 0.3}, {"flat_ner": False}, {"multi_label": True}, {"overflow": "truncate"}):
        assert PARITY.group(scores | option, POOLING) == PARITY.group(scores, POOLING)
        assert PARITY.group(case(**option), POOLING) != PARITY.group(case(), POOLING)
    assert PARITY.group(scores, POOLING) != PARITY.group(case(), POOLING)


def test_a_case_alone_is_sent_as_a_text_and_several_as_texts() -> None:
    one, two = case(), case(id="d", text="other", labels=["red"])
    alone = PARITY.body([one], POOLING)["data"]
    assert (alone["text"], alone["labels"]) == (TEXT, LABELS)
    together = PARITY.body([one, two], POOLING)["data"]
    assert (together["texts"], together["labels_per_text"]) == ([TEXT, "other"], [LABELS, ["red"]])
    assert not together.keys() & {"text", "labels"}
    assert not alone.keys() & {"texts", "labels_per_text"}


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_a_certain_score_is_an_answer(score: float) -> None:
    logits = np.full((WORDS, WIDTH, len(LABELS)), -9.0, np.float32)
    assert findings(case(), logits, {"entities": [entity((2, WIDTH - 1, 1), score)]})[0].wrong is None


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
    wanted = case(entities=answer)
    finding, verdict = findings(wanted, logits, {"entities": answer[1:]})
    assert verdict.result == "Failed"
    assert finding.metrics["decoded_shift"] > 1e-4
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
        {"score": -1e-9},
        # one word more than the widest span, and one that ends before it begins
        {"start": 0, "end": BOUNDS[WIDTH][1], "text": TEXT[: BOUNDS[WIDTH][1]]},
        {"start": BOUNDS[1][0], "end": BOUNDS[0][1], "text": ""},
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
def test_an_answer_without_entities_or_of_other_words_is_wrong(answer: Any) -> None:
    assert findings(case(), drawn(3), answer)[0].wrong
    with pytest.raises(WrongAnswer):
        PARITY.outputs(b"no JSON", [case()], POOLING)
    fewer = {"entities": [], "words_kept": WORDS - 1}
    assert f"{WORDS - 1} words were read" in findings(case(overflow="truncate"), drawn(3), fewer)[0].wrong


@pytest.mark.parametrize("change", [{"label": "x" * 9000}, {"score": 2.0, "more": "x" * 9000}])
def test_a_wrong_entity_is_quoted_in_part(change: dict[str, Any]) -> None:
    # the verdict has room for two kilobytes
    wrong = findings(case(), drawn(3), {"entities": [entity((0, 0, 0), 0.9) | change]})[0].wrong
    assert "entity" in wrong
    assert len(wrong) < 250


def test_an_entity_that_only_the_server_has_is_named_as_the_servers() -> None:
    logits = drawn(3)
    found = findings(case(), logits, {"entities": right_answer(case(), logits)})[0]
    assert found.notes
    assert {note.split(" has ")[0] for note in found.notes} == {"only the server"}


@pytest.mark.parametrize(
    ("one", "other", "excluded"),
    [
        ((0, 0), (1, 0), ""),
        ((0, 1), (1, 1), "flat nested"),
        ((0, 1), (0, 2), "flat"),
        ((0, 2), (1, 1), "flat"),
        ((0, 3), (1, 1), "flat"),
        ((0, 1), (1, 0), "flat"),
        ((0, 1), (2, 1), ""),
        ((2, 1), (2, 1), "single"),
    ],
)
def test_spans_exclude_each_other_by_the_mode(one: tuple[int, int], other: tuple[int, int], excluded: str) -> None:
    for first, second in ((one, other), (other, one)):
        for flat in (True, False):
            for several in (True, False):
                found = parity._exclude(case(flat_ner=flat, multi_label=several), (*first, 0), (*second, 1))
                mode = ("flat" if flat else "nested") if one != other else ("several" if several else "single")
                assert found == (mode in excluded.split())


def test_entities_twice_or_in_another_order_are_wrong() -> None:
    logits = drawn(3)
    answer = right_answer(case(), logits)
    assert len(answer) >= 2
    assert "twice" in findings(case(), logits, {"entities": [answer[0], *answer]})[0].wrong
    assert "order" in findings(case(), logits, {"entities": answer[::-1]})[0].wrong


def scored(logits: NDArray[np.float32], groups: list[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a case with scores, and the right results: one list for each group."""
    wanted = case(measures="scores", span_groups=groups)
    scores = parity._sigmoid(logits)
    spans = [span for span in parity._requested(wanted, scores) if scores[span] > LOW]
    return wanted, [
        {"entities": [entity(span, float(scores[span])) for span in spans if span[0] % WIDTH == group]}
        for group in groups
    ]


def test_scores_are_requested_group_by_group_and_compared_span_by_span() -> None:
    logits = drawn(7)
    wanted, results = scored(logits, list(range(WIDTH)))
    data = PARITY.body([wanted], POOLING)["data"]
    assert len(data["texts"]) == len(data["input_spans"]) == len(data["labels_per_text"]) == WIDTH
    assert (data["threshold"], data["flat_ner"], data["multi_label"]) == (LOW, False, True)
    assert PARITY.weight(wanted) == WIDTH
    # the second group: spans that begin with its words, each with all widths that fit into the text
    words = [range(first, min(first + WIDTH, WORDS)) for first in (1, 5)]
    assert data["input_spans"][1] == [
        {"start": BOUNDS[inside[0]][0], "end": BOUNDS[last][1]} for inside in words for last in inside
    ]
    _, verdict = findings(wanted, logits, {"results": results})
    assert verdict.result == "Passed"
    results[1]["entities"][0]["score"] += 3e-5
    assert findings(wanted, logits, {"results": results})[1].result == "Failed"


def test_a_span_that_is_missing_counts_with_its_distance() -> None:
    logits = drawn(7)
    wanted, results = scored(logits, [0])
    gone = max(results[0]["entities"], key=lambda found: float(found["score"]))
    results[0]["entities"].remove(gone)
    finding, verdict = findings(wanted, logits, {"results": results})
    assert verdict.result == "Failed"
    assert finding.metrics["score_max"] == pytest.approx(gone["score"] - LOW)
    assert "is missing" in finding.notes[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_scores_of_another_model_fail_whatever_the_dtype(dtype: str) -> None:
    wanted, _ = scored(drawn(7), list(range(WIDTH)))
    _, results = scored(drawn(8), list(range(WIDTH)))
    assert findings(wanted, drawn(7), {"results": results}, dtype)[1].result == "Failed"


@pytest.mark.parametrize(
    ("dtype", "size", "result"),
    [
        ("bfloat16", 0.02, "Passed"),
        ("bfloat16", 0.06, "Failed"),
        ("float16", 0.004, "Passed"),
        ("float16", 0.02, "Failed"),
    ],
)
def test_what_a_dtype_may_lose_is_measured_in_what_the_library_loses(dtype: str, size: float, result: str) -> None:
    logits = drawn(7)
    wanted, _ = scored(logits, list(range(WIDTH)))
    noise = np.random.default_rng(1).normal(0, size, logits.shape).astype(np.float32)
    scores, moved = parity._sigmoid(logits), parity._sigmoid(logits + noise)
    results = [
        {
            "entities": [
                entity(span, float(moved[span]))
                for span in parity._requested(wanted, scores)
                if moved[span] > LOW and span[0] % WIDTH == group
            ]
        }
        for group in range(WIDTH)
    ]
    assert findings(wanted, logits, {"results": results}, dtype)[1].result == result


def test_a_pass_over_cases_without_any_score_measures_no_quantile() -> None:
    quiet = np.full((WORDS, WIDTH, len(LABELS)), -9.0, np.float32)
    wanted, results = scored(quiet, [0])
    reference, found = examined(wanted, quiet, {"results": results})
    verdict = verdicts.judge(found, TOLERANCE, reference, {})
    assert verdict.result == "Inconclusive"
    assert "score_p50" in verdict.message


def test_a_span_below_the_threshold_that_is_answered_counts() -> None:
    logits = drawn(7)
    wanted, results = scored(logits, [0])
    scores = parity._sigmoid(logits)
    low = min((span for span in parity._requested(wanted, scores)), key=lambda span: float(scores[span]))
    results[0]["entities"].append(entity(low, 0.9))
    finding, verdict = findings(wanted, logits, {"results": results})
    assert verdict.result == "Failed"
    assert finding.metrics["score_max"] > 0.5


def test_only_one_group_answered_of_several_is_wrong() -> None:
    logits = drawn(7)
    wanted, results = scored(logits, list(range(WIDTH)))
    empty: list[dict[str, Any]] = [{"entities": []} for _ in results[1:]]
    assert findings(wanted, logits, {"results": [results[0], *empty]})[1].result == "Failed"


def test_too_few_results_are_wrong() -> None:
    logits = drawn(7)
    wanted, results = scored(logits, [0, 1])
    assert "had 2 texts" in findings(wanted, logits, {"results": results[:1]})[0].wrong


def test_requests_never_hold_more_texts_than_a_server_takes() -> None:
    many: list[Any] = [case(id=str(number), measures="scores", span_groups=list(range(WIDTH))) for number in range(100)]
    many += [case(id=f"e{number}") for number in range(300)]
    for step in plans.plan(PARITY, many):
        assert sum(len(batch.cases) for batch in step.batches) == 400
        for batch in step.batches:
            data = PARITY.body(batch.cases, POOLING)["data"]
            assert len(data.get("texts", [0])) <= plans.MAX_TEXTS


def test_cases_of_many_labels_are_sent_in_smaller_requests() -> None:
    many = case(measures="scores", span_groups=list(range(WIDTH)), labels=[f"label {number}" for number in range(500)])
    steps = plans.plan(PARITY, [many | {"id": str(number)} for number in range(10)])
    # 9 words, 4 widths, 500 labels: 18 000 pairs
    assert {len(batch.cases) for batch in steps[1].batches} == {2}
    assert len(PARITY.body([many, many], POOLING)["data"]["texts"]) == 2 * WIDTH
    answer = {"data": {"results": [{"entities": [{"number": number}]} for number in range(2 * WIDTH)]}}
    first, second = PARITY.outputs(json.dumps(answer).encode(), [many, many], POOLING)
    assert [found["number"] for found in first + second] == list(range(2 * WIDTH))


def test_the_built_in_cases_are_those_that_matter() -> None:
    found = {one["id"]: one for one in cases.cases(384)}
    assert len(found) == len(cases.cases(384))
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
    assert "overlong" not in {one["id"] for one in cases.cases(8192)}


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
        cases.user_cases(inputs, cases.cases(100))


def test_a_users_case_gets_the_defaults_of_a_request() -> None:
    (found,) = cases.user_cases([{"text": "a", "labels": ["b"]}], [])
    assert (found["id"], found["threshold"], found["flat_ner"], found["multi_label"]) == ("user-0", 0.5, True, False)


def test_wrong_answers_are_distinguished_from_failures() -> None:
    with pytest.raises(WrongAnswer):
        PARITY.compare(case(), [{"start": 0}], expected(drawn(0)))
