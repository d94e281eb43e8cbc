"""What the parity check of extraction measures, on answers that are written here."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from encoder_plugins.errors import Unsupported, WrongAnswer
from encoder_plugins.families.gliner2 import cases
from encoder_plugins.families.gliner2.parity import PARITY, POOLING

TEXT = "Ada met Bob in Rome."
SCHEMA: dict[str, Any] = {
    "entities": ["person"],
    "relations": ["met"],
    "structures": {
        "trip": {"fields": [{"name": "who"}, {"name": "kind", "dtype": "str", "choices": ["Walk", "drive"]}]}
    },
    "classifications": [{"task": "topic", "labels": ["news", "sport"]}],
}
# of the structure, the entities and the relation: only the last one is nearly another count in bfloat16
COUNTS = np.array([[0, 9, 1], [0, 9, 1], [0, 9, 8.9]], np.float32)


def served() -> dict[str, Any]:
    """Return the server's result."""
    ada = {"text": "Ada", "start": 0, "end": 3, "score": 0.9}
    bob = {"text": "Bob", "start": 8, "end": 11, "score": 0.8}
    return {
        "entities": {"person": [ada, bob]},
        "relations": {"met": [{"head": ada, "tail": bob}]},
        "structures": {"trip": [{"who": [ada], "kind": {"text": "Walk", "score": 0.7}}]},
        "classifications": {"topic": [{"label": "news", "score": 0.6}]},
    }


def library() -> dict[str, Any]:
    """Return the same in the library's form."""
    ada = {"text": "Ada", "start": 0, "end": 3, "confidence": 0.9}
    bob = {"text": "Bob", "start": 8, "end": 11, "confidence": 0.8}
    return {
        "entities": {"person": [ada, bob]},
        "relation_extraction": {"met": [{"head": ada, "tail": bob}]},
        "trip": [{"who": [ada], "kind": {"text": "Walk", "confidence": 0.7}}],
        "topic": {"label": "news", "confidence": 0.6},
    }


def compared(got: dict[str, Any], measures: cases.Measures = "scores", rounded: Any = None) -> Any:
    case = {
        **cases.scores("a", TEXT, SCHEMA),
        "measures": measures,
        "answer": library(),
        "answer_bfloat16": rounded or library(),
    }
    expected = {"count_logits": COUNTS, "count_logits_bfloat16": COUNTS + np.float32(0.05)}
    return PARITY.compare(case, got, expected)


def test_equal_answers_differ_by_nothing() -> None:
    found = compared(served())
    assert set(found.metrics) == {"score_max", "missing_max", "missing_clear", "counts", "label_max"}
    assert not any(found.metrics.values())
    assert compared(served(), "answer").metrics == {"score_max": 0.0, "answers": 0.0}
    # entities 2, both ends of the relation, two values of the record, one label
    assert len(found.samples["error"]) == len(found.samples["noise"]) == 7


def test_a_score_that_moves_is_measured_beside_the_librarys_own_rounding() -> None:
    got, rounded = served(), library()
    got["structures"]["trip"][0]["kind"]["score"] = 0.72
    rounded["trip"][0]["kind"]["confidence"] = 0.69
    found = compared(got, rounded=rounded)
    assert found.metrics["score_max"] == pytest.approx(0.02)
    assert found.metrics["label_max"] == 0.0
    assert found.samples["noise"].max() == pytest.approx(0.01)
    got["classifications"]["topic"][0]["score"] = 0.65
    assert compared(got).metrics["label_max"] == pytest.approx(0.05)


@pytest.mark.parametrize(("kind", "name", "clear"), [("entities", "person", True), ("relations", "met", False)])
def test_a_value_of_one_side_counts_by_its_distance_to_the_threshold(kind: str, name: str, clear: bool) -> None:
    got = served()
    del got[kind][name][0]
    found = compared(got)
    missing = 0.9 - cases.LOW
    assert found.metrics["missing_max"] == pytest.approx(missing)
    assert found.metrics["missing_clear"] == pytest.approx(missing if clear else 0.0)
    # of the relation nothing is left
    assert found.metrics["counts"] == (0.0 if clear else 1.0)
    assert found.notes
    assert compared(got, "answer").metrics["answers"] == 1.0


def test_records_are_compared_with_those_that_they_are_like() -> None:
    def answers(*whos: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return both sides with a record for each name."""
        got, expected = served(), library()
        starts = {"Ada": 0, "Bob": 8, "Rome": 15}
        places = [{"text": who, "start": starts[who], "end": starts[who] + len(who)} for who in whos]
        got["structures"]["trip"] = [{"who": [{**place, "score": 0.5}], "kind": None} for place in places]
        expected["trip"] = [{"who": [{**place, "confidence": 0.5}], "kind": None} for place in places]
        return got, expected

    case = {**cases.scores("a", TEXT, SCHEMA), "answer": answers("Ada", "Bob", "Rome")[1]}
    case["answer_bfloat16"] = answers("Bob", "Rome")[1]
    expected = {"count_logits": COUNTS, "count_logits_bfloat16": COUNTS}
    # the records that only one side has, and those that are compared with the library's in bfloat16, too
    for whos, alone, measured in [
        (("Ada", "Bob", "Rome"), 0, 2),
        (("Bob", "Rome"), 1, 2),
        (("Ada", "Rome"), 1, 1),
        (("Rome", "Ada", "Bob"), 2, 1),
        ((), 3, 0),
    ]:
        found = PARITY.compare(case, answers(*whos)[0], expected)
        assert len(found.notes) == alone
        assert found.metrics["score_max"] == 0.0
        # entities 2, both ends of the relation, one label
        assert len(found.samples["error"]) == 5 + measured


def test_relations_at_one_place_are_compared_with_those_of_the_nearest_scores() -> None:
    def relations(form: str, *scores: float) -> list[dict[str, Any]]:
        ada = {"text": "Ada", "start": 0, "end": 3}
        return [{"head": {**ada, form: 0.9}, "tail": {**ada, form: score}} for score in scores]

    got, expected, rounded = served(), library(), library()
    expected["relation_extraction"]["met"] = relations("confidence", 0.8, 0.5, 0.7)
    # rounding took the second one below the threshold on both sides
    rounded["relation_extraction"]["met"] = relations("confidence", 0.81, 0.69)
    got["relations"]["met"] = relations("score", 0.8, 0.72)
    case = {**cases.scores("a", TEXT, SCHEMA), "answer": expected, "answer_bfloat16": rounded}
    found = PARITY.compare(case, got, {"count_logits": COUNTS, "count_logits_bfloat16": COUNTS})
    assert found.metrics["score_max"] == pytest.approx(0.02)
    assert found.samples["noise"].max() == pytest.approx(0.01)
    assert len(found.notes) == 2
    counts = {"count_logits": COUNTS, "count_logits_bfloat16": COUNTS}
    assert PARITY.compare(case | {"measures": "answer"}, got, counts).metrics == {
        "score_max": found.metrics["score_max"],
        "answers": 1.0,
    }
    # one that moves by more than its neighbours are apart is not excused by them
    got["relations"]["met"] = relations("score", 0.8, 0.5, 0.3)
    found = PARITY.compare(case, got, {"count_logits": COUNTS, "count_logits_bfloat16": COUNTS})
    assert found.metrics["score_max"] == pytest.approx(0.4)


def test_entities_in_another_order_are_another_answer() -> None:
    got = served()
    got["entities"]["person"].reverse()
    assert compared(got, "answer").metrics == {"score_max": 0.0, "answers": 1.0}


def test_what_is_no_result_of_this_schema_is_wrong() -> None:
    for path in ("entities", "relations", "structures", "classifications"):
        got = served()
        del got[path]
        with pytest.raises(WrongAnswer, match="schema"):
            compared(got)
    got = copy.deepcopy(served())
    got["entities"]["person"][0]["text"] = "Eva"
    with pytest.raises(WrongAnswer, match="not what is at 0 to 3"):
        compared(got)


def test_one_text_is_answered_as_among_several() -> None:
    case = cases.scores("a", TEXT, SCHEMA)
    alone = json.dumps({"data": {**served(), "usage": {"prompt_tokens": 3, "words": 6}}}).encode()
    together = json.dumps({"data": {"results": [served()] * 2, "usage": {}}}).encode()
    assert PARITY.outputs(alone, [case], POOLING) == [served()]
    assert PARITY.outputs(together, [case] * 2, POOLING) == [served()] * 2
    assert set(PARITY.body([case] * 2, POOLING)["data"]) == {"texts", "schemas", "threshold", "overlap_policy"}
    for content, count in ((together, 3), (b'{"data": []}', 1), (b"{}", 2), (b"no JSON", 1)):
        with pytest.raises(WrongAnswer, match="results"):
            PARITY.outputs(content, [case] * count, POOLING)


def test_built_in_cases_have_distinct_names_and_measure_every_bound() -> None:
    built_in = cases.cases()
    names = [case["id"] for case in built_in]
    assert len(set(names)) == len(names)
    assert {case["measures"] for case in built_in} == {"answer", "scores"}
    # schemas are stored with sorted names, and their order decides every score
    assert all(list(case["schema"]) == sorted(case["schema"]) for case in built_in)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": ""}, "text is not a text"),
        ({"schema": {}}, "schema is not an object"),
        ({"schema": {"relations": {"met": "each other"}}}, "relations have descriptions"),
        ({"threshold": 2}, "threshold is not a number from 0 to 1"),
        ({"threshold": True}, "threshold is not a number from 0 to 1"),
        ({"overlap_policy": 3}, "overlap_policy is not a text"),
    ],
)
def test_a_users_case_is_refused_by_its_field(values: dict[str, Any], message: str) -> None:
    case = {"id": "mine", "text": TEXT, "schema": {"entities": ["person"]}}
    (found,) = cases.user_cases([case], [])
    assert (found["measures"], found["threshold"], found["overlap_policy"]) == ("answer", 0.5, None)
    with pytest.raises(Unsupported, match=message):
        cases.user_cases([case | values], [])
