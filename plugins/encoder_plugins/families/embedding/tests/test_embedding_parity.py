"""How the parity check sends texts to a server of embeddings, reads its answers, and measures them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from encoder_plugins.errors import WrongAnswer
from encoder_plugins.families.embedding.parity import BASE64, FLOAT, OPENAI, EmbeddingParity
from encoder_plugins.inputs.encodings import encode_base64

# what it reads of a checkpoint plays no part here
PARITY = EmbeddingParity(checkpoint=None)  # type: ignore[arg-type]
PLAIN: dict[str, Any] = {"text": "a", **dict.fromkeys(PARITY.options)}
SCORED = {**PLAIN, "id": "scored", "documents": ["b", "c", "d"]}
THEIRS = np.array([0.6, 0.8, 0, 0, 0, 0, 0, 0], np.float32)


def measured(ours: Any, theirs: Any = THEIRS, rounded: Any = None) -> dict[str, float]:
    expected = {"vector": np.asarray(theirs, np.float32)}
    if rounded is not None:
        expected["vector_bfloat16"] = np.asarray(rounded, np.float32)
    return dict(PARITY.compare(PLAIN, np.asarray(ours, np.float32), expected).metrics)


def test_the_distance_of_two_vectors_is_measured() -> None:
    assert measured(THEIRS) == pytest.approx({"cosine": 1.0, "max_abs_error": 0.0})
    turned = np.array([0.8, 0.6, 0, 0, 0, 0, 0, 0], np.float32)
    assert measured(turned) == pytest.approx({"cosine": 0.96, "max_abs_error": 0.2})
    # in units of the library's vector where that is longer than 1; a shorter one does not make errors larger
    assert measured(10 * turned, 10 * THEIRS) == pytest.approx({"cosine": 0.96, "max_abs_error": 0.2})
    assert measured(turned / 10, THEIRS / 10)["max_abs_error"] == pytest.approx(0.02)
    assert measured(-THEIRS)["cosine"] == pytest.approx(-1.0)


def test_a_vector_of_zeros_is_like_another_one_only() -> None:
    zeros = np.zeros(8, np.float32)
    assert measured(zeros, zeros) == {"cosine": 1.0, "max_abs_error": 0.0}
    assert measured(zeros)["cosine"] == measured(THEIRS, zeros)["cosine"] == 0.0
    # nothing is rounded of it
    assert "noise_ratio" not in measured(zeros, zeros, zeros)


def test_rounding_is_measured_in_that_of_the_library() -> None:
    off = np.zeros(8, np.float32)
    off[7] = 0.01
    assert measured(THEIRS + 3 * off, rounded=THEIRS + off)["noise_ratio"] == pytest.approx(3.0, rel=1e-4)
    # of the same part of a longer vector, too
    assert measured(10 * (THEIRS + 3 * off), 10 * THEIRS, 10 * (THEIRS + off))["noise_ratio"] == pytest.approx(
        3.0, rel=1e-4
    )
    # the library may happen to round nothing
    assert measured(THEIRS + off, rounded=THEIRS)["noise_ratio"] == pytest.approx(0.01 * 512, rel=1e-4)
    # seven numbers say too little
    assert "noise_ratio" not in measured(THEIRS[:7] + off[:7], THEIRS[:7], THEIRS[:7])


@pytest.mark.parametrize("ours", [THEIRS[:-1], THEIRS[None], np.full(8, np.nan), np.full(8, np.inf)])
def test_another_shape_and_numbers_that_are_none_are_wrong(ours: Any) -> None:
    with pytest.raises(WrongAnswer):
        PARITY.compare(PLAIN, ours, {"vector": THEIRS})


@pytest.mark.parametrize("dtype", list(PARITY.tolerances))
def test_scores_may_change_places_only_where_they_are_close(dtype: str) -> None:
    theirs = np.array([0.9, 0.5, 0.1], np.float32)

    def within(ours: Any, scores: Any = theirs) -> bool:
        metrics = PARITY.compare(SCORED, np.asarray(ours, np.float32), {"scores": scores}).metrics
        assert metrics.keys() == {"score_error", "rank_gap"}
        return all(bound.holds(metrics[bound.metric]) for bound in PARITY.tolerances[dtype] if bound.metric in metrics)

    assert within(theirs + np.array([0, 1e-6, 0], np.float32))
    assert not within(theirs[::-1])
    assert not within(theirs + np.float32(0.3))
    # an exchange of documents that are close is none, and cosines near 0 are compared as they are
    close = np.array([0.5, 0.5 + 2e-6, 1e-3], np.float32)
    assert within(close[[1, 0, 2]], close)
    assert within([1e-3 + 5e-6], np.array([1e-3], np.float32))
    # larger scores, as dot products are, in units of the largest
    assert within(100 * theirs + np.float32(5e-4), 100 * theirs)
    assert not within(100 * theirs[[1, 0, 2]], 100 * theirs)
    with pytest.raises(WrongAnswer, match=r"shape \(2,\)"):
        within(theirs[:2])


def test_documents_are_scored_alone_and_only_by_the_route_that_can() -> None:
    assert PARITY.body([SCORED], FLOAT) == {"data": {"query": "a", "documents": ["b", "c", "d"]}}
    assert PARITY.group(SCORED, OPENAI) is None
    assert PARITY.group(SCORED, FLOAT) != PARITY.group({**SCORED, "id": "other"}, FLOAT)
    assert PARITY.weight(SCORED) == 3
    answer = {"data": {"results": [{"indices": [2, 0, 1], "scores": [0.5, 0.25, 0.125]}]}}
    for variant in (FLOAT, BASE64):
        (found,) = PARITY.outputs(json.dumps(answer).encode(), [SCORED], variant)
        assert found.tolist() == [0.25, 0.125, 0.5]
    for ranking in ({"indices": [2, 0], "scores": [0.5, 0.25]}, {"indices": [2, 0, 1], "scores": [0.25, 0.5, 0.1]}):
        with pytest.raises(WrongAnswer, match="each document once"):
            PARITY.outputs(json.dumps({"data": {"results": [ranking]}}).encode(), [SCORED], FLOAT)


def test_requests_have_what_their_cases_have() -> None:
    other = {**PLAIN, "text": "b"}
    options = {name: None for name in PARITY.options}
    assert PARITY.body([PLAIN], FLOAT) == {"data": {"text": "a", **options, "encoding": "float"}}
    assert PARITY.body([PLAIN, other], BASE64) == {"data": {"texts": ["a", "b"], **options, "encoding": "base64"}}
    assert PARITY.body([PLAIN, other], OPENAI) == {"input": ["a", "b"], "encoding_format": "base64"}
    cut = {**PLAIN, "dimensions": 4}
    assert PARITY.body([cut], OPENAI) == {"input": ["a"], "encoding_format": "base64", "dimensions": 4}
    assert PARITY.body([cut], FLOAT)["data"]["dimensions"] == 4
    assert PARITY.weight(PLAIN) == 1


def test_cases_with_other_options_are_not_sent_together() -> None:
    cut, prompted = {**PLAIN, "dimensions": 4}, {**PLAIN, "prompt_name": "query"}
    for variant in (FLOAT, BASE64):
        assert len({PARITY.group(case, variant) for case in (PLAIN, cut, prompted)}) == 3
        assert PARITY.group(PLAIN, variant) == PARITY.group({**PLAIN, "text": "b"}, variant)
    # the API of OpenAI has a field for one of them
    assert PARITY.group(cut, OPENAI) not in (None, PARITY.group(PLAIN, OPENAI))
    assert PARITY.group(prompted, OPENAI) is None


def test_all_encodings_of_an_answer_are_read() -> None:
    base64 = encode_base64(THEIRS[None])
    answers = {
        FLOAT: {"data": {"embeddings": [THEIRS.tolist()]}},
        BASE64: {"data": {"embeddings": base64}},
        OPENAI: {"data": [{"embedding": base64[0]}]},
    }
    for variant, answer in answers.items():
        (found,) = PARITY.outputs(json.dumps(answer).encode(), [PLAIN], variant)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, THEIRS)
    for content in (b"", b"[]", b'{"data": {}}', b'{"data": {"embeddings": 3}}', b'{"data": {"embeddings": [["x"]]}}'):
        with pytest.raises(WrongAnswer, match="neither embeddings nor scores"):
            PARITY.outputs(content, [PLAIN], FLOAT)
    # a verdict has little room
    with pytest.raises(WrongAnswer) as error:
        PARITY.outputs(json.dumps({"data": {"embeddings": [["x" * 500]]}}).encode(), [PLAIN], FLOAT)
    assert len(str(error.value)) == 200
