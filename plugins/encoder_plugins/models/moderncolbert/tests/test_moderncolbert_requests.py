"""What a request may hold and what is answered: without an engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_plugins import catalog
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval import payload
from encoder_plugins.families.retrieval.parity import PARITY
from encoder_plugins.families.retrieval.processor import MultiVectorProcessor, Parsed
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs import encodings
from encoder_plugins.models.moderncolbert.checkpoint import CHECKPOINT
from encoder_plugins.models.moderncolbert.tests import tiny
from encoder_plugins.parity import plan as plans
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

PLUGIN = catalog.get("moderncolbert")
(POOLING,) = PLUGIN.routes


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("pylate", tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def model(published: Path) -> Path:
    folder = published.parent / "model"
    folder.mkdir()
    CHECKPOINT.convert(published, {}, folder)
    return folder


def served(model: Path, most_tokens: int = 64, **changed: int) -> MultiVectorProcessor:
    values = limits.defaults(PLUGIN) | changed
    return MultiVectorProcessor(
        ServingContext(model=model, max_model_len=most_tokens, names=("colbert",), limits=values)
    )


def answered(of: MultiVectorProcessor, request: Parsed, *rounds: list[torch.Tensor]) -> tuple[Response, list[Round]]:
    """Return the answer where the engine pools to the given tensors, and what it was given."""
    running: Running = of.run(request, ENGINE)
    found, sent = advance(running), []
    for pooled in rounds:
        assert isinstance(found, Round)
        sent.append(found)
        found = advance(running, pooled)
    assert isinstance(found, Response)
    return found, sent


SCORED = {"query": "a", "documents": ["b", "c"]}


@pytest.mark.parametrize(
    ("data", "param", "says"),
    [
        ({}, "data.text", "neither"),
        ({"text": "a"}, "data.input_type", "query or document"),
        ({"text": "a", "texts": ["b"], "input_type": "query"}, "data.texts", "both"),
        ({"text": "a", "input_type": "passage"}, "data.input_type", "'document' or 'query'"),
        ({"text": "a", "input_type": "query", "is_query": False}, "data.is_query", "contradicts"),
        ({"text": "a", "is_query": "false"}, "data.is_query", "bool"),
        ({"texts": ["a", 3], "is_query": True}, "data.texts[1]", "str"),
        ({"texts": ["a", ""], "is_query": True}, "data.texts[1]", "empty"),
        ({"texts": ["a"] * 4, "is_query": True}, "data.texts", "the limit is 3"),
        ({"text": "a\0", "is_query": True}, "data.text", r"U\+0000"),
        ({"text": "a", "is_query": True, "dimensions": 32}, "data.dimensions", "no such field"),
        ({"text": "a", "is_query": True, "encoding": "hex"}, "data.encoding", "'base64'"),
        ({"query": "a"}, "data.documents", "required"),
        ({"documents": ["a"]}, "data.query", "neither"),
        ({"top_k": 3}, "data.query", "neither"),
        ({**SCORED, "queries": ["a"]}, "data.queries", "both"),
        ({**SCORED, "documents": []}, "data.documents", "empty"),
        ({**SCORED, "documents": ["a", ""]}, "data.documents[1]", "empty"),
        ({**SCORED, "documents": ["a"] * 5}, "data.documents", "the limit is 4"),
        ({"queries": ["a"] * 3, "documents": ["b"]}, "data.queries", "the limit is 2"),
        ({"queries": [], "documents": ["b"]}, "data.queries", "empty"),
        ({**SCORED, "top_k": 0}, "data.top_k", ">= 1"),
        ({**SCORED, "top_k": 1.5}, "data.top_k", "int"),
        ({**SCORED, "text": "a"}, "data.text", "send text or texts for rows"),
        ({**SCORED, "input_type": "query"}, "data.input_type", "both there"),
        ({**SCORED, "encoding": "base64"}, "data.encoding", "leave encoding out"),
        # 2 queries of 32 rows of 32 numbers of 4 bytes, times 2 documents
        ({"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "data.documents", "24576 bytes; the limit is 20000"),
    ],
)
def test_a_bad_request_is_refused_by_field_and_limit(data: dict[str, Any], param: str, says: str, model: Path) -> None:
    small = served(model, texts=3, queries=2, documents=4, score_bytes=20_000)
    with pytest.raises(InvalidRequest) as caught:
        small.parse(POOLING, bodies.encode(data))
    assert caught.value.param == param
    assert re.search(says, caught.value.message)


def test_a_text_beyond_what_the_engine_takes_is_refused_in_its_position(model: Path) -> None:
    small = served(model, most_tokens=32)
    with pytest.raises(InvalidRequest, match="64 tokens; this server takes 32") as caught:
        small.parse(POOLING, bodies.encode({"texts": ["a", "word " * 90], "input_type": "document"}))
    assert caught.value.param == "data.texts[1]"


@pytest.mark.parametrize(
    "query", [{"input_type": "query"}, {"is_query": True}, {"input_type": "query", "is_query": True}]
)
def test_queries_are_expanded_and_the_added_tokens_only_query(query: dict[str, Any], model: Path) -> None:
    request = served(model).parse(POOLING, bodies.encode({"text": "bread", **query}))
    (text,) = request.texts
    assert (len(text.ids), text.rows) == (32, 32)
    assert text.keys < 10
    document = served(model).parse(POOLING, bodies.encode({"text": "bread", "is_query": False})).texts[0]
    assert len(document.ids) == document.keys == text.keys
    assert payload.encode(document) is None


@pytest.mark.parametrize("encoding", ["float", "base64", "bytes"])
def test_rows_come_back_in_the_order_of_the_texts_with_their_number(encoding: str, model: Path) -> None:
    of = served(model)
    request = of.parse(POOLING, bodies.encode({"texts": ["a", "b c"], "is_query": True, "encoding": encoding}))
    pooled = [torch.arange(64.0).reshape(2, 32), torch.arange(96.0).reshape(3, 32) / 7]
    response, _ = answered(of, request, pooled)
    if encoding == "bytes":
        rows = encodings.decode_bytes(response.body, response.headers)
        counts = [int(count) for count in response.headers["x-encoder-rows"].split(",")]
        found = np.split(rows, np.cumsum(counts)[:-1])
    else:
        data = json.loads(response.body)["data"]
        assert (data["rows"], data["dimensions"], data["encoding"]) == ([2, 3], 32, encoding)
        assert data["usage"] == {"prompt_tokens": 64}
        decode = encodings.decode_base64 if encoding == "base64" else np.array
        found = [decode(text).reshape(count, 32) for text, count in zip(data["embeddings"], data["rows"], strict=True)]
    for got, expected in zip(found, pooled, strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), expected.numpy())


def test_documents_are_scored_by_the_rows_of_the_queries(model: Path) -> None:
    of = served(model)
    data = {"queries": ["a", "b"], "documents": ["c", "d", "e"], "top_k": 2}
    rows = [torch.full((32, 32), 0.5), torch.ones(32, 32)]
    scores = [torch.tensor([1.0, 5.0]), torch.tensor([3.0, 5.0]), torch.tensor([2.0, 7.0])]
    response, (first, second) = answered(of, of.parse(POOLING, bodies.encode(data)), rows, scores)
    assert (len(first.prompts), len(second.prompts)) == (2, 3)
    for prompt in second.prompts:
        packed = payload.queries_of(prompt.parameters, 32)
        assert packed is not None
        assert packed[1].tolist() == [32, 32]
        np.testing.assert_array_equal(payload.unpack_rows(packed[0], 32), torch.cat(rows).numpy())
    # of equal scores the first document comes first
    assert json.loads(response.body)["data"]["results"] == [
        {"indices": [1, 2], "scores": [3.0, 2.0]},
        {"indices": [2, 0], "scores": [7.0, 5.0]},
    ]


def test_every_request_of_the_parity_check_is_accepted(published: Path, model: Path) -> None:
    of, cases = served(model), PARITY.cases(published, ({"text": "mine", "documents": ["one", "two"]},))
    for step in plans.plan(PARITY, cases):
        for batch in step.batches:
            body = json.dumps({"model": "colbert", **PARITY.body(batch.cases, batch.variant)}).encode()
            assert len(of.parse(POOLING, body).texts) == sum(PARITY.weight(case) for case in batch.cases)
