"""What the comparison with the library notices, and what it leaves to rounding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from encoder_plugins.errors import Unsupported, WrongAnswer
from encoder_plugins.families.retrieval import cases
from encoder_plugins.families.retrieval.parity import BASE64, FLOAT, PARITY
from encoder_plugins.inputs import encodings

ROWS = np.random.default_rng(1).normal(size=(6, 16)).astype(np.float32)
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
TEXT = {"id": "text", "input_type": "query", "text": "a", "documents": None}
SCORED = {**TEXT, "id": "scored", "documents": ["a", "b", "c", "d"]}
SCORES = np.array([9.0, 8.0, 8.0, 2.0], np.float32)
ROUNDED = {"rows": ROWS, "rows_bfloat16": ROWS + np.float32(4e-3)}


def within(case: dict[str, Any], got: Any, dtype: str, expected: Any) -> bool:
    metrics = PARITY.compare(case, np.asarray(got, np.float32), expected).metrics
    return all(bound.holds(metrics[bound.metric]) for bound in PARITY.tolerances[dtype] if bound.metric in metrics)


@pytest.mark.parametrize("dtype", list(PARITY.tolerances))
def test_exchanged_rows_fail_and_the_librarys_own_pass(dtype: str) -> None:
    assert within(TEXT, ROWS, dtype, ROUNDED)
    assert not within(TEXT, ROWS[::-1], dtype, ROUNDED)
    assert not within(TEXT, ROWS[:, ::-1], dtype, ROUNDED)
    assert not within(TEXT, 2 * ROWS, dtype, ROUNDED)


@pytest.mark.parametrize("dtype", list(PARITY.tolerances))
def test_scores_may_change_places_only_where_they_are_close(dtype: str) -> None:
    expected = {"scores": SCORES}
    assert within(SCORED, SCORES, dtype, expected)
    assert within(SCORED, SCORES + np.array([0, 0, 1e-6, 0], np.float32), dtype, expected)
    # 8 bits move scores by up to a fifth
    order, factor = ([3, 1, 2, 0], 1.3) if dtype == "fp8" else ([1, 0, 2, 3], 1.1)
    assert not within(SCORED, SCORES[order], dtype, expected)
    assert not within(SCORED, factor * SCORES, dtype, expected)
    metrics = PARITY.compare(SCORED, np.array([7.5, 8.0, 8.0, 2.0], np.float32), expected).metrics
    assert metrics["rank_gap"] == pytest.approx(1 / 9)
    assert PARITY.compare(SCORED, SCORES[[0, 2, 1, 3]], expected).metrics["rank_gap"] == 0


def test_rows_are_measured_one_by_one() -> None:
    def measured(ours: Any, **expected: Any) -> dict[str, float]:
        return dict(PARITY.compare(TEXT, np.asarray(ours, np.float32), expected).metrics)

    theirs = np.array([[0.6, 0.8], [1, 0]], np.float32)
    assert measured(theirs, rows=theirs) == pytest.approx({"cosine": 1.0, "max_abs_error": 0.0})
    # the worst row, and the largest difference of a number
    turned = np.array([[0.8, 0.6], [1, 0]], np.float32)
    assert measured(turned, rows=theirs) == pytest.approx({"cosine": 0.96, "max_abs_error": 0.2})
    # in units of the longest row where that is longer than 1; of shorter ones errors do not become larger
    longer = theirs * np.array([[10], [1]], np.float32)
    assert measured(longer + np.float32(0.5), rows=longer)["max_abs_error"] == pytest.approx(0.05)
    assert measured(10 * turned, rows=10 * theirs)["cosine"] == pytest.approx(0.96)
    assert measured(turned / 10, rows=theirs / 10)["max_abs_error"] == pytest.approx(0.02)
    # a row of zeros is like another one only
    zero = theirs * np.array([[1], [0]], np.float32)
    assert measured(zero, rows=zero)["cosine"] == pytest.approx(1.0)
    assert measured(zero, rows=theirs)["cosine"] == measured(theirs, rows=zero)["cosine"] == 0.0
    # the distance of all rows, in units of the library's own in bfloat16, which may happen to be none
    off = np.array([[0, 0.01], [0, 0]], np.float32)
    assert measured(theirs + 3 * off, rows=theirs, rows_bfloat16=theirs + off)["noise_ratio"] == pytest.approx(
        3, rel=1e-4
    )
    ratio = measured(theirs + off, rows=theirs, rows_bfloat16=theirs)["noise_ratio"]
    assert ratio == pytest.approx(0.01 * 512 / 2**0.5, rel=1e-4)


def test_scores_are_measured_in_units_of_the_largest() -> None:
    def measured(ours: Any, theirs: Any) -> dict[str, float]:
        return dict(
            PARITY.compare(SCORED, np.array(ours, np.float32), {"scores": np.array(theirs, np.float32)}).metrics
        )

    assert measured([4, 2, 1], [4, 2, 1]) == {"score_error": 0.0, "rank_gap": 0.0}
    assert measured([4, 2, 1.5], [4, 2, 1]) == pytest.approx({"score_error": 0.125, "rank_gap": 0.0})
    # the last is first now: behind it is one whose score is 3 higher
    assert measured([4, 2, 5], [4, 2, 1]) == pytest.approx({"score_error": 1.0, "rank_gap": 0.75})
    assert measured([-1, -2], [-4, -2])["rank_gap"] == pytest.approx(0.5)
    assert measured([0, 0], [0, 0]) == {"score_error": 0.0, "rank_gap": 0.0}


def test_requests_have_what_their_cases_have() -> None:
    other, prompted = {**TEXT, "text": "b"}, {**TEXT, "prompt_name": "web"}
    assert PARITY.body([TEXT], FLOAT) == {"data": {"text": "a", "input_type": "query", "encoding": "float"}}
    assert PARITY.body([TEXT, other], BASE64) == {
        "data": {"texts": ["a", "b"], "input_type": "query", "encoding": "base64"}
    }
    assert PARITY.body([prompted], FLOAT)["data"]["prompt_name"] == "web"
    assert PARITY.body([SCORED], FLOAT) == {"data": {"query": "a", "documents": ["a", "b", "c", "d"]}}
    assert (PARITY.weight(TEXT), PARITY.weight(SCORED)) == (1, 4)
    document = {**TEXT, "input_type": "document"}
    groups = [PARITY.group(case, FLOAT) for case in (TEXT, prompted, document, SCORED, {**SCORED, "id": "other"})]
    assert len(set(groups)) == 5
    assert PARITY.group(other, FLOAT) == groups[0]


def test_scores_come_in_the_order_of_the_documents() -> None:
    ranking = {"indices": [2, 0, 3, 1], "scores": [4.0, 3.0, 3.0, 1.0]}
    (found,) = PARITY.outputs(json.dumps({"data": {"results": [ranking]}}).encode(), [SCORED], FLOAT)
    assert found.tolist() == [3.0, 1.0, 4.0, 3.0]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"data": {}}', b'{"data": {"embeddings": [[1]], "rows": [1, 1], "dimensions": 1}}']
)
def test_an_answer_without_rows_is_wrong(content: bytes) -> None:
    with pytest.raises(WrongAnswer, match="neither rows nor scores"):
        PARITY.outputs(content, [TEXT], FLOAT)
    with pytest.raises(WrongAnswer, match="neither rows nor scores"):
        PARITY.outputs(b'{"data": {"results": []}}', [SCORED], FLOAT)
    # a verdict has little room
    with pytest.raises(WrongAnswer) as error:
        PARITY.outputs(
            json.dumps({"data": {"embeddings": [["x" * 500]], "rows": [1], "dimensions": 1}}).encode(), [TEXT], FLOAT
        )
    assert len(str(error.value)) == 200


@pytest.mark.parametrize("got", [ROWS[:-1], ROWS[:, :-1], np.full_like(ROWS, np.nan)])
def test_another_number_of_rows_or_nan_is_wrong(got: Any) -> None:
    with pytest.raises(WrongAnswer):
        PARITY.compare(TEXT, got, ROUNDED)


def test_both_encodings_give_the_rows() -> None:
    for variant in (FLOAT, BASE64):
        written = [ROWS.tolist()] if variant == FLOAT else encodings.encode_base64(ROWS.reshape(1, -1))
        data = {"embeddings": written, "rows": [6], "dimensions": 16}
        (found,) = PARITY.outputs(json.dumps({"data": data}).encode(), [TEXT], variant)
        np.testing.assert_array_equal(found, ROWS)


@pytest.mark.parametrize(
    "ranking",
    [
        {"indices": [0, 1, 2], "scores": [9, 8, 7]},
        {"indices": [0, 1, 2, 2], "scores": [9, 8, 7, 6]},
        {"indices": [0, 1, 2, 3], "scores": [8, 9, 7, 6]},
        {"indices": [0, 1, 2, 3]},
    ],
)
def test_a_ranking_that_is_none_is_wrong(ranking: dict[str, Any]) -> None:
    with pytest.raises(WrongAnswer):
        PARITY.outputs(json.dumps({"data": {"results": [ranking]}}).encode(), [SCORED], FLOAT)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ({"text": ""}, "text"),
        ({"text": "a", "input_type": "title"}, "input_type"),
        ({"text": "a", "documents": []}, "documents"),
        ({"text": "a", "documents": ["b", 3]}, "documents"),
        ({"text": "a", "input_type": "document", "documents": ["b"]}, "scored by a query"),
        ({"text": "a", "top_k": 3}, "top_k"),
    ],
)
def test_a_users_case_is_refused_by_field(case: dict[str, Any], says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        cases.user_cases([case], [])
