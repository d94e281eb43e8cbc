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
