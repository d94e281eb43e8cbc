"""What a request may hold and what is answered: without an engine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from encoder_plugins.artifact import manifest
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval import payload, token_pooling
from encoder_plugins.families.retrieval.parity import PARITY
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import EmbeddingDtype
from encoder_plugins.models.moderncolbert.tests.processing import POOLING, RERANK, SCORE, answered, served, texts_of
from encoder_plugins.parity import plan as plans
from encoder_plugins.serving.processor import Part, Prompt
from encoder_plugins.serving.rounds import ENGINE, ManualEngine, Running, advance

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

Rows = NDArray[np.float32]


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
        ({"texts": "a", "is_query": True}, "data.texts", "array"),
        ({"text": "a\ud800", "is_query": True}, "data.text", "lone surrogate"),
        ({"text": "a", "is_query": True, "dtype": "float16"}, "data.dtype", "no such field"),
        *(
            ({"text": "a", "is_query": True, "dimensions": size}, "data.dimensions", says)
            for size, says in {0: ">= 1", -1: ">= 1", 33: "the model's 32", 10**9: "the model's 32", 1.5: "int"}.items()
        ),
        *(
            ({"text": "a", "is_query": False, "pool_factor": factor}, "data.pool_factor", says)
            for factor, says in {0: ">= 1", -1: ">= 1", 0.99: ">= 1", 10**9: "<= 1024", "2": "float"}.items()
        ),
        ({"text": "a", "is_query": True, "pool_factor": 2}, "data.pool_factor", "only the rows of documents"),
        ({"text": "word " * 90, "is_query": False, "pool_factor": 2}, "data.text", "64 rows; .*up to 50"),
        ({"text": "a", "is_query": True, "embedding_dtype": "int4"}, "data.embedding_dtype", "'binary'"),
        ({"text": "a", "is_query": True, "embedding_dtype": "int8"}, "data.embedding_dtype", "prepare the model again"),
        (
            {"text": "a", "is_query": True, "embedding_dtype": "uint8"},
            "data.embedding_dtype",
            "prepare the model again",
        ),
        ({"text": "a", "is_query": True, "return_tokens": 1}, "data.return_tokens", "bool"),
        (
            {"text": "a", "is_query": False, "return_tokens": True, "pool_factor": 2},
            "data.return_tokens",
            "leave out pool_factor",
        ),
        ({"text": "a", "is_query": True, "return_tokens": True, "encoding": "bytes"}, "data.return_tokens", "base64"),
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
        ({**SCORED, "text": "a"}, "data.text", "text and query are both there"),
        ({**SCORED, "input_type": "query"}, "data.input_type", "both there"),
        ({**SCORED, "encoding": "base64"}, "data.encoding", "has only query, queries"),
        ({"text": "a", "prompt_name": "fact"}, "data.input_type", "required beside the prompt 'fact'"),
        (
            {"text": "a", "prompt_name": "fiction"},
            "data.prompt_name",
            "no prompt 'fiction'.*: document, fact, marked, query, summary",
        ),
        ({"text": "a", "input_type": "query", "prompt_name": ""}, "data.prompt_name", "no prompt ''; there is"),
        ({"text": "a", "input_type": "query", "prompt_name": ["fact"]}, "data.prompt_name", "str"),
        (
            {"text": "a", "prompt_name": "fact", "is_query": True, "input_type": "document"},
            "data.is_query",
            "contradicts",
        ),
        ({"prompt_name": "query"}, "data.text", "neither"),
        ({"text": "a", "prompt_name": "query", "pool_factor": 2}, "data.pool_factor", "only the rows of documents"),
        ({**SCORED, "prompt_name": "fact"}, "data.prompt_name", "scores are those of"),
        # 2 queries of 32 rows of 32 numbers of 4 bytes, times 3 documents
        (
            {"queries": ["a", "b"], "documents": ["c", "d", "e"]},
            "data.documents",
            "^64 rows of queries, once for each of 3 documents, are 24576 bytes; the limit is 20000",
        ),
    ],
)
def test_a_bad_request_is_refused_by_field_and_limit(data: dict[str, Any], param: str, says: str, model: Path) -> None:
    small = served(model, texts=3, queries=2, documents=4, score_bytes=20_000, pooled_rows=50)
    with pytest.raises(InvalidRequest) as caught:
        small.parse(POOLING, bodies.encode(data))
    assert caught.value.param == param
    assert re.search(says, caught.value.message)


@pytest.mark.parametrize(
    ("data", "limits"),
    [
        # 2 queries of 32 rows of 32 numbers of 4 bytes, times 3 documents
        ({"queries": ["a", "b"], "documents": ["c", "d", "e"]}, {"queries": 2, "documents": 3, "score_bytes": 24_576}),
        ({"texts": ["a", "b"], "is_query": True, "dimensions": 32}, {"texts": 2}),
        ({"text": "word " * 90, "is_query": False, "pool_factor": 2}, {"pooled_rows": 64}),
        # the limit of rows is for those that are merged
        ({"text": "word " * 90, "is_query": False}, {"pooled_rows": 63}),
    ],
)
def test_a_request_up_to_its_limits_is_taken(data: dict[str, Any], limits: dict[str, int], model: Path) -> None:
    request = served(model, **limits).parse(POOLING, bodies.encode(data))
    assert len(request.texts) == len(data.get("documents") or data.get("texts") or [data["text"]])
    assert not request.further


def test_rows_that_are_sent_once_are_refused_without_a_number_of_documents(model: Path) -> None:
    small = served(model, score_bytes=4095)
    with pytest.raises(InvalidRequest) as caught:
        small.parse(POOLING, bodies.encode({"query": "a", "documents": ["b"]}))
    assert caught.value.message.startswith("32 rows of queries are 4096 bytes; the limit is 4095 a request")


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
    assert payload.encode([document]) is None


def test_a_prompt_is_put_before_the_texts_and_its_name_says_what_they_are(model: Path) -> None:
    of = served(model)

    def ids(**data: Any) -> list[int]:
        (text,) = of.parse(POOLING, bodies.encode({"text": "bread", **data})).texts
        return text.ids

    assert ids(prompt_name="query") == ids(input_type="query")
    assert ids(prompt_name="document") == ids(is_query=False)
    query, document = ids(prompt_name="fact", input_type="query"), ids(prompt_name="fact", is_query=False)
    assert query != ids(input_type="query")
    # the prefix and the expansion are those of the kind
    assert (len(query), query[1]) == (32, ids(input_type="query")[1])
    assert (len(document), document[1]) == (len(query) - query.count(query[-1]), ids(is_query=False)[1])
    # a kind may have the prompt of the other, as in the library
    assert ids(prompt_name="query", input_type="document")[1] == document[1]


def test_an_artifact_of_an_earlier_version_has_no_prompts_by_name(model: Path, tmp_path: Path) -> None:
    older = tmp_path / "model"
    shutil.copytree(model, older)
    config = json.loads((older / "config.json").read_text())
    del config["retrieval"]["prompts"]
    for side in ("query", "document"):
        del config["retrieval"][side]["prefix_length"]
    (older / "config.json").write_text(json.dumps(config))
    data = {"texts": ["bread", "  \tbread "], "input_type": "query"}
    texts = [text.ids for text in served(older).parse(POOLING, bodies.encode(data)).texts]
    assert texts == [text.ids for text in served(model).parse(POOLING, bodies.encode(data)).texts]
    with pytest.raises(InvalidRequest, match="prepare the model again"):
        served(older).parse(POOLING, bodies.encode({**data, "prompt_name": "query"}))


@pytest.mark.parametrize("encoding", ["float", "base64", "bytes"])
def test_rows_come_back_in_the_order_of_the_texts_with_their_number(encoding: str, model: Path) -> None:
    of = served(model)
    request = of.parse(POOLING, bodies.encode({"texts": ["a", "b c"], "is_query": True, "encoding": encoding}))
    pooled = [torch.arange(1024.0).reshape(32, 32), torch.arange(1024.0).reshape(32, 32) / 7]
    response, _ = answered(of, request, pooled)
    if encoding == "bytes":
        rows = encodings.decode_bytes(response.body, response.headers)
        counts = [int(count) for count in response.headers["x-encoder-rows"].split(",")]
        found = np.split(rows, np.cumsum(counts)[:-1])
    else:
        data = json.loads(response.body)["data"]
        assert (data["rows"], data["dimensions"], data["encoding"]) == ([32, 32], 32, encoding)
        assert (data["usage"], "tokens" in data) == ({"prompt_tokens": 64}, False)
        decode = encodings.decode_base64 if encoding == "base64" else np.array
        found = [decode(text).reshape(count, 32) for text, count in zip(data["embeddings"], data["rows"], strict=True)]
    for got, expected in zip(found, pooled, strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), expected.numpy())


def test_documents_are_scored_by_the_rows_of_the_queries(model: Path) -> None:
    of = served(model)
    data = {"queries": ["a", "b"], "documents": ["c", "d", "e"], "top_k": 2}
    rows = [torch.full((32, 32), 0.5), torch.ones(32, 32)]
    scores = [torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, 5.0]]), torch.tensor([[2.0, 7.0]])]
    response, (first, second) = answered(of, of.parse(POOLING, bodies.encode(data)), rows, scores)
    # two queries of 32 tokens in one prompt of up to 64, and so are the documents
    assert (len(first.prompts), len(second.prompts)) == (1, 1)
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


# documents of 4, 13, 23, 63, 4 and 4 tokens, for an engine of 64 a request
SHARING = ["bread " * words for words in (1, 10, 20, 60, 1, 1)]
SHARED = [[4, 13, 23], [63], [4, 4]]


def test_texts_share_prompts_up_to_what_the_engine_takes(model: Path) -> None:
    of = served(model)
    request = of.parse(POOLING, bodies.encode({"texts": SHARING, "is_query": False}))
    pooled = [torch.full((text.rows, 32), number / 8) for number, text in enumerate(request.texts)]
    response, (sent,) = answered(of, request, pooled)
    assert [texts_of(prompt) for prompt in sent.prompts] == SHARED
    assert [id_ for prompt in sent.prompts for id_ in prompt.token_ids] == [
        id_ for text in request.texts for id_ in text.ids
    ]
    data = json.loads(response.body)["data"]
    assert data["rows"] == [len(rows) for rows in pooled]
    for rows, expected in zip(data["embeddings"], pooled, strict=True):
        np.testing.assert_array_equal(rows, expected.numpy())
    hundred = served(model, most_tokens=400)
    ids = hundred.parse(POOLING, bodies.encode({"text": "bread", "is_query": False})).texts[0].ids
    request = hundred.parse(POOLING, bodies.encode({"texts": ["bread"] * 100, "is_query": False}))
    _, (sent,) = answered(hundred, request, [torch.ones(4, 32)] * 100)
    assert [prompt.token_ids for prompt in sent.prompts] == [ids * 100]


def test_an_answer_of_the_engine_that_is_not_whole_is_an_error(model: Path) -> None:
    of = served(model)
    request = of.parse(POOLING, bodies.encode({"texts": SHARING[:2], "is_query": False}))
    with pytest.raises(RuntimeError, match="answered 16 rows of 17"):
        answered(of, request, [torch.ones(3, 32), torch.ones(13, 32)])
    # of two prompts
    running: Running = of.run(of.parse(POOLING, bodies.encode({"texts": SHARING[:4], "is_query": False})), ENGINE)
    advance(running)
    with pytest.raises(ValueError, match="longer than"):
        advance(running, [torch.ones(40, 32)])
    scored = of.parse(POOLING, bodies.encode({"query": "a", "documents": SHARING[:3]}))
    with pytest.raises(RuntimeError, match="scored 2 documents of 3"):
        answered(of, scored, [torch.ones(32, 32)], [torch.ones(1, 1), torch.ones(0, 1), torch.ones(1, 1)])


def test_nan_is_refused(model: Path) -> None:
    body = b'{"data": {"text": "a", "is_query": false, "pool_factor": NaN}}'
    with pytest.raises(InvalidRequest, match="neither NaN nor infinity") as caught:
        served(model).parse(POOLING, body)
    assert caught.value.param == "data.pool_factor"


def calibrated(model: Path, folder: Path) -> tuple[Path, Rows]:
    """Return a model folder whose artifact has calibration vectors, and these."""
    vectors = np.random.default_rng(5).normal(size=(40, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    (folder / "model").symlink_to(model)
    (folder / manifest.REFERENCE).mkdir()
    (folder / manifest.CALIBRATION).write_bytes(save({manifest.CALIBRATION_VECTORS: vectors}))
    return folder / "model", vectors


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("encoding", ["float", "base64", "bytes"])
def test_rows_are_cut_merged_and_quantised_in_this_order(
    dtype: EmbeddingDtype, encoding: str, model: Path, tmp_path: Path
) -> None:
    folder, vectors = calibrated(model, tmp_path)
    of = served(folder)
    data = {"texts": ["bread " * 8, "bread"], "is_query": False, "dimensions": 16, "pool_factor": 2.5}
    generator = np.random.default_rng(0)
    pooled = [torch.from_numpy(generator.normal(size=(rows, 32)).astype(np.float32)) for rows in (11, 4)]
    pooled = [torch.nn.functional.normalize(rows) for rows in pooled]
    request = of.parse(POOLING, bodies.encode({**data, "encoding": encoding, "embedding_dtype": dtype}))
    response, _ = answered(of, request, pooled)
    merged = [
        token_pooling.pooled(torch.nn.functional.normalize(rows[:, :16]), 2.5).numpy().astype(np.float32)
        for rows in pooled
    ]
    cut = vectors[:, :16] / np.linalg.norm(vectors[:, :16], axis=1, keepdims=True)
    ranges = encodings.ranges_of(cut) if dtype in encodings.CALIBRATED else None
    exact = encodings.converted(np.concatenate(merged), dtype, ranges)
    expected = encodings.restored(exact, dtype)
    assert [len(rows) for rows in merged] == [5, 2]
    if encoding == "bytes":
        found = encodings.decode_bytes(response.body, response.headers)
        assert response.headers["x-encoder-rows"] == "5,2"
        assert (response.headers["x-encoder-dimensions"], response.headers["x-encoder-dtype"]) == ("16", dtype)
    else:
        answer = json.loads(response.body)["data"]
        assert (answer["rows"], answer["dimensions"], answer["embedding_dtype"]) == ([5, 2], 16, dtype)
        each = [
            encodings.decode_base64(rows, dtype) if encoding == "base64" else np.array(rows)
            for rows in answer["embeddings"]
        ]
        found = np.concatenate([rows.reshape(-1, expected.shape[1]) for rows in each])
    if dtype in encodings.CALIBRATED:
        # a step is where another order of two sums may end up
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    else:
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_tokens_of_the_rows_are_returned(model: Path) -> None:
    of = served(model)
    request = of.parse(POOLING, bodies.encode({"text": "bread, water!", "is_query": False, "return_tokens": True}))
    (text,) = request.texts
    response, _ = answered(of, request, [torch.zeros(text.rows, 32)])
    (found,) = json.loads(response.body)["data"]["tokens"]
    # the skiplist's tokens have no row
    assert len(found["ids"]) == len(found["tokens"]) == text.rows < len(text.ids)
    assert "," not in found["tokens"]
    assert of._tokenizer.strings(found["ids"]) == found["tokens"]
    # each token of a query has one
    request = of.parse(POOLING, bodies.encode({"text": "bread, water!", "is_query": True, "return_tokens": True}))
    response, _ = answered(of, request, [torch.zeros(32, 32)])
    assert json.loads(response.body)["data"]["tokens"][0]["ids"] == request.texts[0].ids


def test_a_text_of_which_the_skiplist_leaves_nothing_is_refused_in_its_position(model: Path) -> None:
    of = served(model)
    of._tokenizer._has_row[of._tokenizer(["bread"], "document")[0].ids] = False
    with pytest.raises(InvalidRequest, match="the text has no rows") as caught:
        of.parse(POOLING, bodies.encode({"texts": ["water", "bread"], "is_query": False}))
    assert caught.value.param == "data.texts[1]"


class PartsEngine(ManualEngine):
    """An engine that scores a document by the number of its tokens, and notes the prompts of each call."""

    def __init__(self, *, concurrent: bool) -> None:
        self.concurrent = concurrent
        self.calls: list[list[Prompt]] = []

    async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[torch.Tensor]:
        self.calls.append(list(prompts))
        ones = len(self.calls) == 1
        return [
            torch.ones(prompt.tokens, 32) if ones else torch.tensor([[float(text)] for text in texts_of(prompt)])
            for prompt in prompts
        ]

    async def encode_parts(self, parts: Sequence[Part], *, lora: str | None = None) -> list[torch.Tensor]:
        return [row for part in parts for row in await self.encode(part.make(), lora=lora)]


class SizesEngine(PartsEngine):
    """An engine that notes how long each piece of work is reported to take, in microseconds."""

    def __init__(self) -> None:
        super().__init__(concurrent=True)
        self.sizes: list[int] = []

    async def compute(self, function: Any, *arguments: Any, size: int, threads: Any = None) -> Any:
        self.sizes.append(size)
        return function(*arguments)

    async def encode_parts(self, parts: Sequence[Part], *, lora: str | None = None) -> list[torch.Tensor]:
        self.sizes += [part.size for part in parts]
        return await super().encode_parts(parts, lora=lora)


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        # 10 for each prompt; two texts of 32 rows of 32 numbers, 16 of which are written in a microsecond
        ({"texts": ["a", "b"], "is_query": True}, [20, 128]),
        ({"text": "word " * 90, "is_query": False, "pool_factor": 2}, [10, 128 + token_pooling.microseconds(64)]),
        # a query and its rows; a part that is tokenised, two that will be, 2 characters in a microsecond; three scores
        ({"query": "a", "documents": ["b" * 150, "c" * 200, "d"]}, [10, 64 + 10, 10, 100 + 10, 10, 3 * 2 + 3]),
        # two queries and their rows, two parts of two documents, and eight scores
        (
            {"queries": ["a", "b"], "documents": ["c" * 100, "d" * 50] * 2},
            [20, 128 + 20, 20, 75 + 20, 4 * 2 + 8],
        ),
    ],
)
async def test_how_long_work_takes_is_known_before(
    data: dict[str, Any], sizes: list[int], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encoder_plugins.families.retrieval.processor.PART_CHARACTERS", 150)
    of, engine = served(model), SizesEngine()
    await of.run(of.parse(POOLING, bodies.encode(data)), engine)
    assert engine.sizes == sizes


# in parts of one to four
MANY = ["word " * (3 * number % 60 + 1) for number in range(12)]


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize("pairs", [True, False])
async def test_documents_are_tokenised_in_parts_while_the_engine_computes(
    concurrent: bool, pairs: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encoder_plugins.families.retrieval.processor.PART_CHARACTERS", 150)
    of = served(model, queries=1)
    body = {"text_1": ["a", "b"] * 6 if pairs else "a", "text_2": MANY}
    request = of.parse(SCORE, json.dumps(body).encode())
    assert 1 <= len(request.texts) < len(MANY)
    engine = PartsEngine(concurrent=concurrent)
    response = await of.run(request, engine)
    queries, *parts = engine.calls
    assert len(parts) > 3 if concurrent else len(parts) == 1
    found = json.loads(response.body)
    tokens = [len(text.ids) for text in of._tokenizer(MANY, "document")]
    assert [each["score"] for each in found["data"]] == tokens
    assert found["usage"]["prompt_tokens"] == sum(tokens) + sum(prompt.tokens for prompt in queries)
    assert response.prompt_tokens == found["usage"]["prompt_tokens"]


async def test_a_bad_document_of_a_later_part_is_named_by_its_position(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encoder_plugins.families.retrieval.processor.PART_CHARACTERS", 10)
    small = served(model, most_tokens=40)
    documents = ["short"] * 9 + ["word " * 50]
    with pytest.raises(InvalidRequest, match="64 tokens; this server takes 40") as caught:
        await small.run(small.parse(RERANK, json.dumps({"query": "a", "documents": documents}).encode()), ENGINE)
    assert caught.value.param == "documents[9]"


def test_a_thousand_documents_of_512_tokens_are_within_the_limits(model: Path) -> None:
    body = {"query": "a", "documents": ["x" * 3_900] * 1_000}
    request = served(model).parse(RERANK, json.dumps(body).encode())
    assert len(request.texts) + sum(len(part.texts) for part in request.further) == 1_000
    # a part has a batch's work for a GPU
    assert len(request.further) > 30


def test_every_request_of_the_parity_check_is_accepted(published: Path, model: Path) -> None:
    of, cases = served(model), PARITY.cases(published, ({"text": "mine", "documents": ["one", "two"]},))
    for step in plans.plan(PARITY, cases):
        for batch in step.batches:
            body = json.dumps({"model": "colbert", **PARITY.body(batch.cases, batch.variant)}).encode()
            assert len(of.parse(POOLING, body).texts) == sum(PARITY.weight(case) for case in batch.cases)
