"""Documents scored by queries, as far as it is pure: parts, rankings, answers, and what travels to the engine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.reference import Array
from encoder_plugins.backbones import token_marks
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval import payload, quantization, rerank, scoring
from encoder_plugins.families.retrieval.scoring import Origin, Scoring, Texts
from encoder_plugins.families.retrieval.tokens import TokenisedText
from encoder_plugins.inputs import encodings

QUERIES = Texts(texts=["a", "b"], path="queries[{}]", kind="query")
DOCUMENTS = Texts(texts=["x" * 500, "y" * 600, "z"], path="documents[{}]", kind="document")
SCORES = np.array([[1.0, 3.0, 3.0], [2.0, 0.5, 4.0]], np.float32)


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([4, 5, 1, 9, 10, 2], [[4, 5, 1], [9, 10], [2]]),
        # a part ends with the text that fills it, be it the last one of all
        ([10, 10], [[10], [10]]),
        ([9, 1], [[9, 1]]),
        ([25, 1, 1], [[25], [1, 1]]),
        ([3], [[3]]),
    ],
)
def test_texts_are_cut_into_parts_that_know_their_positions(lengths: list[int], parts: list[list[int]]) -> None:
    texts = [chr(97 + position) * length for position, length in enumerate(lengths)]
    found = Texts(texts=texts, path="documents[{}]", kind="document").parts(10)
    assert [[len(text) for text in part.texts] for part in found] == parts
    assert [text for part in found for text in part.texts] == texts
    named = [part.where(position) for part in found for position in range(len(part.texts))]
    assert named == [f"documents[{position}]" for position in range(len(texts))]


@pytest.mark.parametrize(("top_k", "kept"), [(None, 3), (1, 1), (3, 3), (10**9, 3)])
def test_of_equal_scores_the_first_document_comes_first(top_k: int | None, kept: int) -> None:
    assert scoring.ranked(SCORES[0], top_k) == ([1, 2, 0][:kept], [3.0, 3.0, 1.0][:kept])
    assert [one["indices"] for one in scoring.rankings(SCORES, top_k)] == [[1, 2, 0][:kept], [2, 0, 1][:kept]]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 2 * 3 + 6),
        ({"pairs": True}, 2 * 3 + 3),
        # of 1 101 characters
        ({"return_documents": True}, 2 * 3 + 6 + 2),
    ],
)
def test_the_work_of_an_answer_grows_with_scores_and_repeated_documents(more: dict[str, Any], expected: int) -> None:
    assert rerank.microseconds(Scoring(queries=QUERIES, documents=DOCUMENTS, **more)) == expected


def test_an_answer_to_a_request_for_scores_has_vllms_fields() -> None:
    request = Scoring(queries=QUERIES, documents=DOCUMENTS, pairs=True, shape="score")
    answers = [json.loads(rerank.answer(request, SCORES[:1], tokens=12, name="colbert")) for _ in range(2)]
    first, second = answers
    assert first["id"].startswith("score-")
    assert len(first["id"]) == len("score-") + 32
    assert first["id"] != second["id"]
    assert abs(first["created"] - time.time()) < 60
    assert (first["model"], first["usage"]) == ("colbert", {"prompt_tokens": 12, "total_tokens": 12})
    assert [(one["index"], one["score"]) for one in first["data"]] == [(0, 1.0), (1, 3.0), (2, 3.0)]


def test_a_page_is_found_by_the_position_of_its_pdf_and_its_number() -> None:
    origins = [Origin(0), Origin(1, page=2), Origin(1, page=5)]
    request = Scoring(queries=QUERIES, documents=DOCUMENTS, shape="rerank", origins=origins)
    results = json.loads(rerank.answer(request, SCORES[1:], tokens=1, name="colbert"))["results"]
    assert results == [
        {"index": 1, "page": 5, "relevance_score": 4.0},
        {"index": 0, "relevance_score": 2.0},
        {"index": 1, "page": 2, "relevance_score": 0.5},
    ]
    assert scoring.rankings(SCORES[1:], 2, origins) == [{"indices": [1, 0], "scores": [4.0, 2.0], "pages": [5, None]}]


def test_the_rows_of_queries_travel_unchanged() -> None:
    rows = [np.arange(8, dtype=np.float32).reshape(2, 4), np.full((1, 4), -0.1, np.float32)]
    packed = payload.pack_queries(rows)
    texts = [TokenisedText([5] * 9, 7, np.arange(9) % 2 == 0), TokenisedText([5] * 3, 3, None)]
    extra = payload.encode(texts, packed)
    found = payload.queries_of(extra, 4)
    assert found is not None
    assert found[1].tolist() == [2, 1]
    np.testing.assert_array_equal(payload.unpack_rows(found[0], 4), np.concatenate(rows))
    # all of the second text's tokens have rows
    assert payload.kept_tokens(extra, 12).tolist() == [0, 2, 4, 6, 8, 9, 10, 11]
    marks = token_marks.decode(extra, 12)
    assert marks is not None
    # the last two of the first text only query
    assert (marks.tokens.tolist(), marks.keys.tolist()) == ([9, 3], [7, 3])


def test_a_text_of_keys_with_rows_alone_needs_no_parameters() -> None:
    assert payload.encode([TokenisedText([5] * 9, 9, None)]) is None
    both = payload.encode([TokenisedText([5] * 9, 9, None)] * 2)
    assert both is not None
    assert set(both) == {token_marks.KEY}


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        (b"\0" * 16, b""),
        (b"\0" * 16, np.array([0, 1], "<i4").tobytes()),
        (b"\0" * 16, np.array([2, -1], "<i4").tobytes()),
        (b"\0" * 32, np.array([1], "<i4").tobytes()),
        (b"\0" * 16, b"\1\0\0"),
        ("text", np.array([1], "<i4").tobytes()),
        (b"\0" * 16, None),
    ],
)
def test_rows_of_queries_that_do_not_fit_are_none(rows: object, counts: object) -> None:
    assert payload.queries_of({payload.QUERIES: rows, payload.QUERY_COUNTS: counts}, 4) is None


@pytest.mark.parametrize("kept", [None, "text", b"", b"\0", b"\0\0\0"])
def test_a_request_whose_kept_tokens_do_not_fit_has_a_row_for_each_token(kept: object) -> None:
    assert payload.kept_tokens({payload.KEPT: kept}, 9).tolist() == list(range(9))


def test_ranges_are_those_of_what_the_request_wants(tmp_path: Path) -> None:
    vectors = np.random.default_rng(2).normal(size=(20, 6)).astype(np.float32)
    (tmp_path / manifest.REFERENCE).mkdir()
    (tmp_path / manifest.CALIBRATION).write_bytes(save({manifest.CALIBRATION_VECTORS: vectors}))
    ranges = quantization.Ranges(tmp_path / "model", 6)
    ranges.check("int8")
    assert ranges.of("float16", 1, lambda rows: rows) is None
    calls = []

    def cut(rows: Array) -> Array:
        calls.append(len(rows))
        return rows[:, :2]

    # each is computed once, whatever other requests want in between
    for size in ("small", "other") * 2:
        found = ranges.of("uint8", size, cut)
        assert found is not None
        np.testing.assert_array_equal(found, encodings.ranges_of(vectors[:, :2]))
    assert calls == [20, 20]
    # a client that requests ever other sizes does not fill the memory: 64 times two rows of float32
    assert quantization.MOST_KEPT * 2 * 4 * 4096 <= 2 << 20
    for key in range(quantization.MOST_KEPT):
        ranges.of("int8", key, cut)
    assert len(ranges._found) <= quantization.MOST_KEPT
    # vectors of another width are of no use
    with pytest.raises(InvalidRequest, match="prepare the model again"):
        quantization.Ranges(tmp_path / "model", 5).check("uint8")


def test_rows_that_are_cut_have_length_1_again_only_where_all_have() -> None:
    rows = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]], np.float32)
    np.testing.assert_allclose(quantization.cut(rows, 2, normalize=True), [[0.6, 0.8], [0.0, 0.0]])
    np.testing.assert_array_equal(quantization.cut(rows, 2, normalize=False), rows[:, :2])
    # what is short is not zero
    tiny = np.array([[3e-12, 4e-12, 1.0]], np.float32)
    np.testing.assert_allclose(quantization.cut(tiny, 2, normalize=True), [[0.6, 0.8]], rtol=1e-5)
    for dimensions in (None, 3):
        assert quantization.cut(rows, dimensions, normalize=True) is rows
