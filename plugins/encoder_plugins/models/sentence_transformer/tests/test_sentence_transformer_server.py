"""The whole way: prepare, serve, compare, and what clients of several kinds send. One real server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import numpy as np
import openai
import pytest

from encoder_checkpoints.answer_cache import library_answer
from encoder_client import AsyncSentenceTransformer, InvalidRequestError, NotServedError, SentenceTransformer
from encoder_client.tests import documented
from encoder_plugins import offline
from encoder_plugins.compatibility import installed_plugins, installed_vllm
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.embedding.vectors import finish
from encoder_plugins.families.retrieval import calibration
from encoder_plugins.families.retrieval.tests.scoring_routes import Scored
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import EmbeddingDtype, Vectors
from encoder_plugins.models.sentence_transformer.parity import PARITY
from encoder_plugins.parity.client import versions
from encoder_plugins.serving.tests.servers import Server, minilm, running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

DTYPES: tuple[EmbeddingDtype, ...] = get_args(EmbeddingDtype)
README = Path(__file__).parents[1] / "README.md"
TEXTS = [f"sentence {number} about {'boats ' * (number % 9)}and bread" for number in range(64)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the default limits."""
    with running(minilm(tmp_path_factory.mktemp("artifacts") / ("a" * 64))) as started:
        yield started


@pytest.fixture
def openai_client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def vectors(server: Server, **data: Any) -> Vectors:
    return np.array(server.answer(**data)["embeddings"], dtype=np.float32)


def test_without_http_the_vectors_are_the_same(server: Server) -> None:
    expected = vectors(server, texts=TEXTS)
    with offline.Model(server.artifact, accelerator="cpu", limits={"texts": 16}) as model:
        answers = model.map({"texts": tuple(TEXTS[start : start + 16])} for start in range(0, 64, 16))
        found = np.concatenate([np.array(answer["embeddings"], np.float32) for answer in answers])
        np.testing.assert_allclose(found, expected, atol=1e-5)
        array = model.answer({"texts": TEXTS[:3], "encoding": "bytes"})
        np.testing.assert_allclose(array, expected[:3], atol=1e-5)
        refused = list[dict[str, Any]]([{"texts": ["a", ""]}, {"texts": ["a", "b\ud800"]}, {"texts": TEXTS[:17]}])
        mixed = model.map([{"text": "a"}, *refused, {"text": "b"}])
        next(mixed)
        for param in ("data.texts[1]", "data.texts[1]", "data.texts"):
            with pytest.raises(InvalidRequest) as caught:
                next(mixed)
            assert caught.value.param == param
        assert len(list(mixed)) == 1


def test_the_server_passes_parity(server: Server) -> None:
    command = [sys.executable, "-m", "encoder_plugins", "parity", str(server.artifact), server.url]
    done = subprocess.run([*command, "--name", "minilm", "--dtype", "float32"], capture_output=True, text=True)
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, verdict["result"]) == (0, "Passed"), verdict
    assert verdict["cases"] >= 48


def test_answers_do_not_depend_on_their_company(server: Server) -> None:
    alone = np.concatenate([vectors(server, text=text) for text in TEXTS])
    together = vectors(server, texts=TEXTS)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    shuffled = vectors(server, texts=[TEXTS[place] for place in order])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(shuffled, alone[order], atol=1e-6)


async def test_sixteen_clients_with_one_request_id_get_their_own_answers(server: Server) -> None:
    expected = vectors(server, texts=TEXTS)
    headers = {"content-type": "application/json", "x-request-id": "the-same"}

    async def client(number: int) -> None:
        async with httpx.AsyncClient(timeout=120) as session:
            for step in range(4):
                place = (number * 4 + step) % len(TEXTS)
                body = {"model": "minilm", "request_id": "x", "data": {"texts": [TEXTS[place], TEXTS[-1 - place]]}}
                response = await session.post(f"{server.url}/pooling", json=body, headers=headers)
                found = np.array(response.json()["data"]["embeddings"], dtype=np.float32)
                np.testing.assert_allclose(found, expected[[place, -1 - place]], atol=1e-6)

    await asyncio.gather(*(client(number) for number in range(16)))


def test_every_encoding_holds_the_same_vectors(server: Server) -> None:
    expected = vectors(server, texts=TEXTS[:3], dimensions=5)
    answer = server.answer(texts=TEXTS[:3], dimensions=5, encoding="base64")
    assert answer.keys() == {"embeddings", "rows", "dimensions", "encoding", "embedding_dtype", "usage"}
    assert (answer["dimensions"], answer["encoding"]) == (5, "base64")
    for text, row in zip(answer["embeddings"], expected, strict=True):
        np.testing.assert_array_equal(encodings.decode_base64(text), row)
    response = server.post(
        {"data": {"texts": TEXTS[:3], "dimensions": 5, "encoding": "bytes", "embedding_dtype": "float16"}}
    )
    assert response.headers["content-type"] == "application/octet-stream"
    found = encodings.decode_bytes(response.content, response.headers)
    np.testing.assert_array_equal(found, expected.astype(np.float16))


def test_scores_are_the_cosines_of_the_library_by_every_route(server: Server) -> None:
    queries, documents = TEXTS[:2], TEXTS[2:40]
    oracle = "encoder_plugins.families.embedding.tests.oracle:similarities"
    expected = library_answer("sentence_transformers", oracle, str(server.artifact / "model"), queries, documents)
    scored = Scored(
        server=server, name="minilm", parity=PARITY, queries=queries, documents=documents, expected=expected
    )
    scored.check_pooling()
    scored.check_reranking()
    scored.check_pairs()
    scored.check_cohere()


@pytest.mark.soak
def test_components_of_langchain_llama_index_and_haystack_work(server: Server) -> None:
    script = Path(__file__).with_name("framework_clients.py")
    command = ["uv", "run", "--quiet", "--frozen", "--script", str(script), server.url, TEXTS[0], *TEXTS[1:5]]
    environment = {**os.environ, "HAYSTACK_TELEMETRY_ENABLED": "false", "VIRTUAL_ENV": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = vectors(server, texts=TEXTS[1:5])
    for name in ("langchain_embeddings", "llama_index_embeddings", "haystack_embeddings"):
        np.testing.assert_allclose(np.array(found[name], np.float32), expected, atol=1e-6)
    (ranking,) = server.answer(query=TEXTS[0], documents=TEXTS[1:5], top_k=2)["results"]
    assert [text for text, _ in found["langchain_reranked"]] == [TEXTS[1 + place] for place in ranking["indices"]]
    np.testing.assert_allclose([score for _, score in found["langchain_reranked"]], ranking["scores"], atol=1e-6)


def test_numbers_are_quantised_by_what_prep_recorded(server: Server) -> None:
    exact = vectors(server, texts=TEXTS[:8], dimensions=100)
    recorded = calibration.read(server.artifact / "model")
    assert recorded is not None
    assert len(recorded) == 100
    cut = finish(recorded, checkpoint_normalizes=True, dimensions=100, normalize=None)
    data = {"texts": TEXTS[:8], "dimensions": 100, "encoding": "bytes"}
    for dtype in DTYPES:
        ranges = encodings.ranges_of(cut) if dtype in encodings.CALIBRATED else None
        response = server.post({"data": {**data, "embedding_dtype": dtype}})
        found = encodings.decode_bytes(response.content, response.headers)
        wanted = encodings.restored(encodings.converted(exact, dtype, ranges), dtype)
        assert response.headers["x-encoder-dimensions"] == "100"
        # of a number beside a border the same request may end up on either side
        assert (found != wanted).mean() < 0.01, dtype


def test_the_official_client_of_openai_gets_its_embeddings(server: Server, openai_client: openai.OpenAI) -> None:
    expected = vectors(server, texts=TEXTS[:3])
    # its client requests base64 by default
    found = openai_client.embeddings.create(model="minilm", input=TEXTS[:3], user="tenant")
    assert [entry.index for entry in found.data] == [0, 1, 2]
    np.testing.assert_array_equal(np.array([entry.embedding for entry in found.data], np.float32), expected)
    tokens = server.answer(texts=TEXTS[:3])["usage"]["prompt_tokens"]
    assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == ("minilm", tokens, tokens)
    one = openai_client.embeddings.create(model="minilm", input=TEXTS[0], dimensions=7, encoding_format="float")
    np.testing.assert_array_equal(np.array(one.data[0].embedding, np.float32), expected[0, :7])


@pytest.mark.parametrize(
    ("wrong", "error", "param"),
    [
        ({"input": [1, 2]}, openai.BadRequestError, "input[0]"),
        ({"input": [[1, 2]]}, openai.BadRequestError, "input[0]"),
        ({"input": ["a", ""]}, openai.BadRequestError, "input[1]"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"dimensions": 385}, openai.BadRequestError, "dimensions"),
        ({"encoding_format": "hex"}, openai.BadRequestError, "encoding_format"),
        ({"extra_body": {"other": 1}}, openai.BadRequestError, "other"),
        ({"model": "another"}, openai.NotFoundError, "model"),
    ],
)
def test_the_official_client_of_openai_understands_refusals(
    openai_client: openai.OpenAI, wrong: dict[str, Any], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as caught:
        openai_client.embeddings.create(**{"model": "minilm", "input": "a"} | wrong)
    assert caught.value.param == param


def library(server: Server, method: str, *arguments: Any, **options: Any) -> Any:
    """Return what a method of the library's class returns for the checkpoint that is served."""
    oracle = "encoder_client.tests.oracle:called"
    folder = str(server.artifact / "model")
    return library_answer("sentence_transformers", oracle, "SentenceTransformer", folder, method, *arguments, **options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("encode", {}),
        ("encode_query", {"normalize_embeddings": True, "truncate_dim": 100}),
        ("encode_document", {"truncate_dim": 33}),
        ("encode", {"precision": "ubinary"}),
    ],
)
async def test_the_python_client_returns_what_the_library_returns(
    server: Server, method: str, options: dict[str, Any]
) -> None:
    expected = library(server, method, TEXTS, **options)
    tolerance = 0 if expected.dtype == np.uint8 else 1e-5
    with SentenceTransformer(server.url) as model:
        several = getattr(model, method)(TEXTS, batch_size=7, **options)
        one = getattr(model, method)(TEXTS[3], **options)
    async with AsyncSentenceTransformer(server.url, concurrency=3) as model:
        awaited = await getattr(model, method)(TEXTS, batch_size=7, **options)
    assert (several.dtype, several.shape) == (awaited.dtype, awaited.shape) == (expected.dtype, expected.shape)
    assert one.shape == expected[3].shape
    for found, wanted in ((several, expected), (awaited, expected), (one, expected[3])):
        if tolerance:
            np.testing.assert_allclose(found, wanted, atol=tolerance)
        else:
            # a number of the engine and one of the library on two sides of 0
            assert (np.unpackbits(found) != np.unpackbits(wanted)).mean() < 0.001


def test_the_python_client_splits_lists_at_the_limits_of_the_server(server: Server) -> None:
    texts = TEXTS * 5
    with SentenceTransformer(server.url, model="minilm") as model:
        found = model.encode(texts, batch_size=1000)
        np.testing.assert_allclose(found[:64], library(server, "encode", TEXTS), atol=1e-5)
        np.testing.assert_allclose(found, np.tile(found[:64], (5, 1)), atol=1e-5)
        texts[300] = "\0"
        with pytest.raises(InvalidRequestError, match=r"^data\.texts\[300\]: the control character") as caught:
            model.encode(texts, batch_size=1000)
        assert (caught.value.param, caught.value.status) == ("data.texts[300]", 400)
        with pytest.raises(InvalidRequestError, match="there is"):
            model.encode("a", prompt_name="none")
    with SentenceTransformer(server.url, model="another") as model, pytest.raises(NotServedError) as missing:
        model.encode("a")
    assert missing.value.param == "model"


async def test_the_examples_of_the_pages_run(server: Server) -> None:
    await documented.run("minilm", server.url, README)


def test_the_client_that_vllm_documents_is_understood(server: Server) -> None:
    body = {"model": "minilm", "priority": 0, "task": "plugin", "data": {"text": "hello"}}
    assert server.post(body).status_code == 200


def test_the_openapi_document_is_that_of_the_repository(server: Server) -> None:
    committed = Path(__file__).parents[5] / "docs" / "openapi" / "sentence_transformer.json"
    assert httpx.get(f"{server.url}/openapi.json").json() == json.loads(committed.read_text())


def data(value: Any, **more: Any) -> bytes:
    return json.dumps({"model": "minilm", "data": value, **more}).encode()


# each finds another part of the way; what a field may hold is tested without a server
BAD = {
    "nothing": (b"", 400, "body"),
    "no UTF-8": (b'{"model": "minilm", "data": {"text": "\xff"}}', 400, "body"),
    "lone surrogate": (b'{"model": "minilm", "data": {"text": "\\ud800"}}', 400, "data.text"),
    "nested deep": (b'{"model": "minilm", "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "data"),
    "huge number": (
        data({"text": "a", "dimensions": 1}).replace(b": 1}", b": 1" + b"0" * 5_000 + b"}"),
        400,
        "data.dimensions",
    ),
    "vLLM's own input": (b'{"model": "minilm", "input": "hello"}', 400, "input"),
    "another task": (data({"text": "a"}, task="token_embed"), 400, "task"),
    "unknown adapter": (data({"text": "a"}, lora="legal"), 404, "lora"),
    "other model": (b'{"model": "maxilm", "data": {"text": "a"}}', 404, "model"),
    "NUL": (data({"text": "a\0"}), 400, "data.text"),
    "too many": (data({"texts": ["a"] * 257}), 400, "data.texts"),
    "too long together": (data({"texts": ["a " * 90_000] * 23}), 400, "data.texts"),
    "a million numbers": (
        b'{"model": "minilm", "data": {"texts": [' + b"1," * 1_000_000 + b"1]}}",
        400,
        "data.texts[0]",
    ),
    "10 MB": (data({"text": "x" * 10_000_000}), 413, "body"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_gets_a_4xx_that_names_the_field_and_the_server_goes_on(server: Server, name: str) -> None:
    body, status, param = BAD[name]
    response = server.post(body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, status)
    assert error["message"]
    assert vectors(server, text="still there").shape == (1, 384)


@pytest.mark.parametrize("path", ["/v2/embed", "/tokenize", "/classify", "/invocations", "/docs", "/load"])
def test_no_other_way_leads_in(server: Server, path: str) -> None:
    assert httpx.post(server.url + path, json={"model": "minilm", "input": "a"}).status_code == 404


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version"])
def test_what_probes_need_answers(server: Server, path: str) -> None:
    assert httpx.get(server.url + path, timeout=60).status_code == 200


async def test_the_parity_check_gets_the_versions_of_vllm_and_of_the_plugins(server: Server) -> None:
    assert await versions(server.url) == {"vllm": installed_vllm(), "plugin": installed_plugins()}


def test_base64_of_the_openai_route_is_that_of_the_other(server: Server) -> None:
    ours = server.answer(text="hello", encoding="base64")["embeddings"][0]
    response = server.post({"input": "hello", "encoding_format": "base64"}, "/v1/embeddings")
    assert response.json()["data"][0]["embedding"] == ours
    assert len(base64.b64decode(ours)) == 384 * 4
