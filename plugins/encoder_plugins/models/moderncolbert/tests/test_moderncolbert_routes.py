"""What requests for rankings and scores of pairs may hold, and what is answered, by the routes of other services' clients: without an engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_plugins.errors import InvalidRequest, UnknownAdapter, UnknownModel
from encoder_plugins.families.retrieval import payload
from encoder_plugins.models.moderncolbert.tests.processing import POOLING, RERANK, SCORE, answered, served
from encoder_plugins.plugin import Route

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

RERANKED: dict[str, Any] = {"query": "a", "documents": ["b", {"text": "c"}, "d"]}


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "query", "required"),
        ({"query": "a"}, "documents", "required"),
        ({**RERANKED, "documents": []}, "documents", "empty"),
        ({**RERANKED, "documents": "b"}, "documents", "array"),
        ({**RERANKED, "documents": ["b", 3]}, "documents[1]", "str"),
        ({**RERANKED, "documents": ["b", {"title": "c"}]}, "documents[1].title", "no such field"),
        ({**RERANKED, "documents": ["b", {"text": ""}]}, "documents[1]", "empty"),
        ({**RERANKED, "documents": ["b"] * 1001}, "documents", "the limit is 1000"),
        ({**RERANKED, "query": ["a"]}, "query", "str"),
        ({**RERANKED, "query": ""}, "query", "empty"),
        ({**RERANKED, "top_n": 0}, "top_n", ">= 1"),
        ({**RERANKED, "top_n": -1}, "top_n", ">= 1"),
        ({**RERANKED, "max_tokens_per_doc": 63}, "max_tokens_per_doc", "after 64 tokens"),
        ({**RERANKED, "rank_fields": ["title"]}, "rank_fields[0]", "'text'"),
        ({**RERANKED, "max_chunks_per_doc": 2}, "max_chunks_per_doc", "1"),
        ({**RERANKED, "truncation": False}, "truncation", "cut"),
        ({**RERANKED, "other": 1}, "other", "no such field"),
    ],
)
def test_a_bad_reranking_is_refused_by_field(body: dict[str, Any], param: str, says: str, model: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        served(model).parse(RERANK, json.dumps(body).encode())
    assert caught.value.param == param
    assert re.search(says, caught.value.message)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "text_1", "neither"),
        ({"text_1": "a"}, "text_2", "neither"),
        ({"text_1": "a", "queries": "b", "text_2": "c"}, "queries", "both"),
        ({"text_1": "a", "documents": "c"}, "documents", "do not belong together"),
        ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1", "2 texts, and 3 in text_2"),
        ({"text_1": ["a", "b"], "text_2": "cd"}, "text_1", "2 texts, and 1 in text_2"),
        ({"queries": [], "documents": ["c"]}, "queries", "0 texts"),
        ({"text_1": "a", "text_2": []}, "text_2", "empty"),
        ({"text_1": ["a"], "text_2": ["b", ""]}, "text_2[1]", "empty"),
        ({"text_1": 3, "text_2": "b"}, "text_1", "str"),
        ({"text_1": "a", "text_2": ["b"] * 1001}, "text_2", "the limit is 1000"),
        ({"text_1": "a", "text_2": "b", "priority": 1}, "priority", "0"),
    ],
)
def test_a_bad_request_for_scores_is_refused_by_field(body: dict[str, Any], param: str, says: str, model: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        served(model).parse(SCORE, json.dumps(body).encode())
    assert caught.value.param == param
    assert re.search(says, caught.value.message)


def test_a_reranking_has_the_fields_of_coheres_and_jinas_answers(model: Path) -> None:
    of = served(model)
    body = {**RERANKED, "model": "colbert", "top_n": 2, "return_documents": True, "max_tokens_per_doc": 64}
    body |= {"max_chunks_per_doc": 1, "truncation": True}
    request = of.parse(RERANK, json.dumps(body).encode())
    rows, scores = [torch.ones(32, 32)], [torch.tensor([[value]]) for value in (1.5, 3.5, 1.5)]
    answer = json.loads(answered(of, request, rows, scores)[0].body)
    assert answer["results"] == [
        {"index": 1, "relevance_score": 3.5, "document": {"text": "c"}},
        {"index": 0, "relevance_score": 1.5, "document": {"text": "b"}},
    ]
    tokens = request.prompt_tokens
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["meta"] == {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}}
    assert (answer["model"], len(answer["id"])) == ("colbert", 32)
    plain = of.parse(RERANK, json.dumps({**RERANKED, "documents": ["b"]}).encode())
    assert json.loads(answered(of, plain, rows, scores[:1])[0].body)["results"] == [
        {"index": 0, "relevance_score": 1.5}
    ]


def test_pairs_travel_with_their_own_query(model: Path) -> None:
    of = served(model, queries=1)
    request = of.parse(SCORE, json.dumps({"text_1": ["a", "b"], "text_2": ["c", "d"], "priority": 0}).encode())
    rows = [torch.full((32, 32), 0.5), torch.ones(32, 32)]
    response, (_, second) = answered(of, request, rows, [torch.tensor([[2.0]]), torch.tensor([[1.0]])])
    for prompt, own in zip(second.prompts, rows, strict=True):
        packed = payload.queries_of(prompt.parameters, 32)
        assert packed is not None
        np.testing.assert_array_equal(payload.unpack_rows(packed[0], 32), own.numpy())
    answer = json.loads(response.body)
    assert answer["object"] == "list"
    assert answer["data"] == [
        {"index": 0, "object": "score", "score": 2.0},
        {"index": 1, "object": "score", "score": 1.0},
    ]


def test_the_rows_of_pairs_are_sent_once_and_taken_up_to_the_limit(model: Path) -> None:
    body = json.dumps({"text_1": ["a", "b"], "text_2": ["c", "d"]}).encode()
    # 2 queries of 32 rows of 32 numbers of 4 bytes
    assert len(served(model, score_bytes=8192).parse(SCORE, body).texts) == 2
    with pytest.raises(InvalidRequest, match="are 8192 bytes; the limit is 8191 a request") as caught:
        served(model, score_bytes=8191).parse(SCORE, body)
    assert caught.value.param == "text_2"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (POOLING, {"data": {"text": "a", "input_type": "query"}}),
        (POOLING, {"data": {"query": "a", "documents": ["b"]}}),
        (RERANK, {"query": "a", "documents": ["b"]}),
        (SCORE, {"text_1": "a", "text_2": "b"}),
    ],
)
def test_every_route_checks_model_and_adapter_and_computes_with_the_adapter(
    route: Route, body: dict[str, Any], model: Path
) -> None:
    of = served(model)

    def sent(**more: str) -> list[str | None]:
        request = of.parse(route, json.dumps(body | more).encode())
        pooled = [[torch.ones(32, 32)], [torch.ones(1, 1)]][: 1 if request.queries is None else 2]
        response, rounds = answered(of, request, *pooled)
        # as vLLM's own routes answer
        assert json.loads(response.body).get("model", expected) == expected
        return [each.lora for each in rounds]

    expected = "colbert"
    assert set(sent()) == {None}
    expected = "legal"
    assert set(sent(model="colbert", lora="legal")) == {"legal"}
    assert set(sent(model="legal")) == {"legal"}
    with pytest.raises(UnknownModel, match="no model 'other' is served here; this is 'colbert'; adapters: legal"):
        sent(model="other")
    with pytest.raises(UnknownAdapter, match="no adapter 'other' is served here; there is: legal"):
        sent(lora="other")
