"""Which values of two answers are compared with each other, and what counts as another answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from encoder_plugins.errors import WrongAnswer
from encoder_plugins.families.gliner2 import cases
from encoder_plugins.families.gliner2.parity import PARITY, POOLING

# with white space behind it: the library reads it as "… Rome\n."
TEXT = "Ada met Bob in Rome\n"
STARTS = {"Ada": 0, "met": 4, "Bob": 8, "Rome": 15}


def mention(word: str, score: float, form: str) -> dict[str, Any]:
    return {"text": word, "start": STARTS[word], "end": STARTS[word] + len(word), form: score}


def records(form: str, *each: dict[str, tuple[str, float]]) -> list[dict[str, Any]]:
    """Return records with one mention, a word and its score, for each field."""
    return [{field: [mention(*value, form)] for field, value in one.items()} for one in each]


def served(**parts: Any) -> dict[str, Any]:
    return {"entities": {}, "classifications": {}, "relations": {}, "structures": {}, **parts}


def compared(
    schema: dict[str, Any], got: dict[str, Any], answer: dict[str, Any], *, measures: str = "scores", counts: Any = None
) -> Any:
    case = {
        **cases.scores("a", TEXT, schema),
        "measures": measures,
        "answer": answer,
        "answer_bfloat16": answer,
    }
    if counts is None:
        tasks = len(schema.get("structures", ())) + bool(schema.get("entities")) + len(schema.get("relations", ()))
        counts = [[0, 9, 1]] * tasks
    exact = np.array(counts, np.float32).reshape(len(counts), 3)
    # half of one is what the library's logits move in bfloat16
    return PARITY.compare(case, got, {"count_logits": exact, "count_logits_bfloat16": exact + np.float32(0.5)})


TRIP: dict[str, Any] = {"structures": {"trip": {"fields": [{"name": "who"}, {"name": "where"}]}}}


def trips(ours: Sequence[dict[str, tuple[str, float]]], theirs: Sequence[dict[str, tuple[str, float]]]) -> Any:
    got = served(structures={"trip": records("score", *ours)})
    return compared(TRIP, got, {"trip": records("confidence", *theirs)})


def test_a_value_of_one_side_is_named_by_its_place_and_without_its_text() -> None:
    ada, bob, rome = {"who": ("Ada", 0.5)}, {"who": ("Bob", 0.5)}, {"who": ("Rome", 0.5)}
    assert trips([ada, rome], [ada]).notes == ("only the server has structures: 2, 15, 19",)
    assert trips([ada], [ada, bob]).notes == ("only the library has structures: 1, 8, 11",)
    # each of several has a number of its own, behind those of the library
    found = trips([bob, ada, rome], [ada])
    assert found.notes == ("only the server has structures: 1, 8, 11", "only the server has structures: 3, 15, 19")
    assert found.metrics["score_max"] == 0.0


def test_records_are_paired_where_their_scores_are_nearest_in_all() -> None:
    # two pairs that differ by 0.8 each are worth less than a pair that is equal
    low, high = {"who": ("Ada", 0.1)}, {"who": ("Ada", 0.9)}
    found = trips([low, high], [high, low])
    assert (found.metrics["score_max"], len(found.notes)) == (0.0, 2)
    # a record of two values is more like one with both than like one with a nearer single one
    both = {"who": ("Ada", 0.5), "where": ("Rome", 0.5)}
    near = {"who": ("Ada", 0.5)}
    far = {"who": ("Ada", 0.6), "where": ("Rome", 0.6)}
    found = trips([both], [near, far])
    assert found.metrics["score_max"] == pytest.approx(0.1)
    assert found.notes == ("only the library has structures: 0, 0, 3",)
    assert trips([far, {"who": ("Bob", 0.4)}], [both]).notes == ("only the server has structures: 2, 8, 11",)
    # in order, whatever is between
    found = trips([near, both, {"who": ("Bob", 0.4)}], [{"who": ("Rome", 0.3)}, near, far, {"who": ("Bob", 0.4)}])
    assert found.metrics["score_max"] == pytest.approx(0.1)
    assert found.notes == ("only the library has structures: 0, 15, 19",)


def test_a_task_counts_once_however_many_instances_it_lacks() -> None:
    ada, bob, rome = {"who": ("Ada", 0.5)}, {"who": ("Bob", 0.5)}, {"who": ("Rome", 0.5)}
    assert trips([ada], [ada, bob, rome]).metrics["counts"] == 1.0
    # a record that lacks a value is still one
    assert trips([ada], [{**ada, "where": ("Rome", 0.5)}]).metrics["counts"] == 0.0
    schema = {"entities": ["person", "city"]}
    ours = {"entities": {"person": [mention("Ada", 0.5, "score")], "city": []}}
    theirs = {"person": [mention("Ada", 0.5, "confidence"), mention("Bob", 0.5, "confidence")]}
    assert compared(schema, served(**ours), {"entities": theirs}).metrics["counts"] == 0.0
    theirs["city"] = [mention("Rome", 0.5, "confidence"), mention("met", 0.5, "confidence")]
    assert compared(schema, served(**ours), {"entities": theirs}).metrics["counts"] == 1.0


def test_only_what_both_sides_have_has_a_difference() -> None:
    schema: dict[str, Any] = {"entities": ["person"]}
    nothing = compared(schema, served(), {})
    assert nothing.metrics == {"missing_max": 0.0, "missing_clear": 0.0, "counts": 0.0}
    assert PARITY.summarise(nothing.samples) == {}
    assert compared(schema, served(), {}, measures="answer").metrics == {"answers": 0.0}


@pytest.mark.parametrize(
    ("logits", "clear"),
    [
        # any number but none is one to entities; four times what rounding moves is two
        ([0, 9, 8.9], True),
        ([7.01, 0, 9], False),
        ([6.9, 0, 9], True),
        ([7, 9, 0], False),
        ([9, 6.9, 0], True),
        ([9, 7, 0], False),
    ],
)
def test_a_count_of_entities_is_none_or_any(logits: list[float], clear: bool) -> None:
    got = served(entities={"person": [mention("Ada", 0.7, "score")]})
    found = compared({"entities": ["person"]}, got, {}, counts=[logits])
    assert found.metrics["missing_max"] == pytest.approx(0.6)
    assert found.metrics["missing_clear"] == pytest.approx(0.6 if clear else 0.0)


@pytest.mark.parametrize(("logits", "clear"), [([0, 9, 8.9], False), ([0, 9, 6.9], True), ([0, 9, 7], False)])
def test_a_count_of_records_is_each_number(logits: list[float], clear: bool) -> None:
    got = served(structures={"trip": records("score", {"who": ("Ada", 0.7)})})
    found = compared(TRIP, got, {"trip": []}, counts=[logits])
    assert found.metrics["missing_clear"] == pytest.approx(0.6 if clear else 0.0)


def test_counts_belong_to_structures_then_entities_then_relations() -> None:
    schema = {**TRIP, "entities": ["person"], "relations": ["met"]}
    ada, bob = mention("Ada", 0.7, "score"), mention("Bob", 0.6, "score")
    sides = {
        "structures": served(structures={"trip": [{"who": [ada]}]}),
        "entities": served(entities={"person": [ada]}),
        "relations": served(relations={"met": [{"head": ada, "tail": bob}]}),
    }
    answer: dict[str, Any] = {"trip": [], "relation_extraction": {}}
    sure, unsure = [0.0, 0.0, 9.0], [9.0, 9.0, 9.0]
    for number, (kind, got) in enumerate(sides.items()):
        counts = [unsure] * 3
        counts[number] = sure
        assert compared(schema, got, answer, counts=counts).metrics["missing_clear"] == pytest.approx(0.6), kind
        counts = [sure] * 3
        counts[number] = unsure
        assert compared(schema, got, answer, counts=counts).metrics["missing_clear"] == 0.0, kind
    # a reference with logits of other tasks is none
    with pytest.raises(ValueError, match="zip"):
        compared(schema, sides["entities"], answer, counts=[sure] * 2)


def test_attributes_are_compared_at_their_mention() -> None:
    schema = {
        "entities": ["person"],
        "entity_attributes": {"age": {"labels": ["old", "young"]}, "mood": {"labels": ["glad"]}},
    }

    def sides(old: float, glad: float | None = 0.4) -> tuple[dict[str, Any], dict[str, Any]]:
        ours = mention("Ada", 0.5, "score")
        ours["attributes"] = {"age": [{"label": "old", "score": old}, {"label": "young", "score": 0.2}]}
        theirs = mention("Ada", 0.5, "confidence")
        theirs["age"] = [{"label": "old", "confidence": 0.3}, {"label": "young", "confidence": 0.2}]
        theirs["mood"] = {"label": "glad", "confidence": 0.4}
        if glad is not None:
            ours["attributes"]["mood"] = {"label": "glad", "score": glad}
        return served(entities={"person": [ours]}), {"entities": {"person": [theirs]}}

    equal = compared(schema, *sides(0.3))
    assert (equal.metrics["score_max"], len(equal.samples["error"])) == (0.0, 4)
    assert compared(schema, *sides(0.5)).metrics["score_max"] == pytest.approx(0.2)
    assert compared(schema, *sides(0.3, 0.1)).metrics["score_max"] == pytest.approx(0.3)
    assert compared(schema, *sides(0.3, None)).notes == ("only the library has attributes: 0, 3",)


def test_what_the_library_finds_behind_the_text_is_left_out() -> None:
    # the library ends a text with a full stop of its own; attributes of what is in it go with it
    schema = {"entities": ["person"], "entity_attributes": {"age": {"labels": ["old"]}}}
    behind = {"text": ".", "start": 20, "end": 21, "confidence": 0.9, "age": {"label": "old", "confidence": 0.9}}
    at_the_end = {"text": "Rome\n.", "start": 15, "end": 21, "confidence": 0.5}
    got = served(entities={"person": [mention("Rome", 0.5, "score")]})
    found = compared(schema, got, {"entities": {"person": [behind, at_the_end]}})
    assert (found.notes, found.metrics["score_max"]) == ((), 0.0)


def test_labels_may_come_in_any_order() -> None:
    schema = {"classifications": [{"task": "topic", "labels": ["news", "sport"], "multi_label": True}]}
    labels = [("news", 0.6), ("sport", 0.4)]
    got = served(classifications={"topic": [{"label": name, "score": score} for name, score in labels[::-1]]})
    answer = {"topic": [{"label": name, "confidence": score} for name, score in labels]}
    assert compared(schema, got, answer, measures="answer", counts=[]).metrics == {"score_max": 0.0, "answers": 0.0}


@pytest.mark.parametrize(
    "part",
    [
        {"entities": []},
        {"entities": {"person": 3}},
        {"entities": {"person": ["Ada"]}},
        {"entities": {"person": [{"text": "Ada", "start": 0, "end": 3}]}},
        {"entities": {"person": [{"text": "Ada", "start": 0, "end": None, "score": 1}]}},
        {"entities": {"person": [{"text": 3, "start": 0, "end": 3, "score": 1}]}},
        {"classifications": {"topic": [["news", 0.5]]}},
        {"relations": {"met": [{"head": mention("Ada", 0.5, "score")}]}},
        {"structures": {"trip": [[]]}},
    ],
)
def test_a_result_of_another_form_is_wrong(part: dict[str, Any]) -> None:
    with pytest.raises(WrongAnswer, match="not one of this schema"):
        compared(TRIP, served(**part), {"trip": []})


@pytest.mark.parametrize(
    "content", [b"", b"3", b"[]", b"{}", b'{"data": 3}', b'{"data": {}}', b'{"data": {"results": 3}}']
)
def test_an_answer_without_results_is_wrong(content: bytes) -> None:
    case = cases.scores("a", TEXT, TRIP)
    with pytest.raises(WrongAnswer, match="holds no results"):
        PARITY.outputs(content, [case] * 2, POOLING)
    if content != b'{"data": {}}' and b"results" not in content:
        with pytest.raises(WrongAnswer, match="holds no results"):
            PARITY.outputs(content, [case], POOLING)


def test_requests_have_the_texts_and_schemas_of_their_cases() -> None:
    one = cases.scores("a", TEXT, TRIP)
    other = {**one, "text": "another", "schema": {"entities": ["person"]}}
    options = {name: one[name] for name in cases.OPTIONS}  # type: ignore[literal-required]
    assert PARITY.body([one], POOLING) == {"data": {"text": TEXT, "schema": TRIP, **options}}
    assert PARITY.body([one, other], POOLING) == {
        "data": {"texts": [TEXT, "another"], "schemas": [TRIP, other["schema"]], **options}
    }
    assert (
        PARITY.group(one, POOLING) == PARITY.group(other, POOLING) != PARITY.group({**one, "threshold": 0.7}, POOLING)
    )


def test_quantiles_are_those_of_all_values() -> None:
    error = np.linspace(0, 0.2, 201)
    found = PARITY.summarise({"error": error, "noise": error / 2})
    assert found == pytest.approx({"score_p50": 0.1, "noise_p50": 2.0, "score_p99": 0.198, "noise_p99": 2.0})
    # below a thousandth the library's own rounding is chance
    assert PARITY.summarise({"error": error, "noise": 0 * error})["noise_p50"] == pytest.approx(100.0)
    assert json.dumps(found)
