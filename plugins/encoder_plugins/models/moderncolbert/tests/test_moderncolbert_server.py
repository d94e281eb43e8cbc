"""Rows and scores over HTTP, against the library and with the clients that users have. One real server."""

from __future__ import annotations

import os
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_checkpoints import colbert_builder
from encoder_checkpoints.answer_cache import library_answer
from encoder_client import AsyncMultiVectorEncoder, InvalidRequestError, MultiVectorEncoder
from encoder_client.tests import documented
from encoder_plugins.families.retrieval import calibration
from encoder_plugins.families.retrieval.parity import PARITY
from encoder_plugins.families.retrieval.tests.scoring_routes import Scored
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import EmbeddingDtype
from encoder_plugins.models.moderncolbert.tests import tiny
from encoder_plugins.serving.tests import servers
from encoder_plugins.serving.tests.servers import Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

README = Path(__file__).parents[1] / "README.md"
ORACLE = "encoder_plugins.families.retrieval.tests.oracle"
QUERIES = ["Which animal runs fast?", "bread"]
WORDS = [
    "the",
    "river",
    "carried",
    "small",
    "boats",
    "past",
    "quiet",
    "gardens",
    "while",
    "villagers",
    "talked",
    "about",
    "weather",
    "music",
    "bread",
]
# of all lengths up to the checkpoint's, and beyond
DOCUMENTS = [
    " ".join(WORDS[(number * 7 + step * step) % len(WORDS)] for step in range(1 + number % 80))
    for number in range(1000)
]
FEW = DOCUMENTS[3:60:7]
# as many characters as a text may have, most of which are cut off; twenty of them are as many as a request may have
LONG = " ".join(WORDS * 3_000)[:199_999]
# 0.02 and 0.03 were measured, and 0.99 and 0.89 where the event loop itself did what each of the two requests is for
MOST_OF_THE_LOOP = 0.4


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("pylate", tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def server(published: Path) -> Iterator[Server]:
    artifact = servers.prepare("moderncolbert", published, published.parent / ("a" * 64))
    with pytest.MonkeyPatch.context() as environment:
        # each thread tokenises by itself, so that the kernel's accounts show which one did
        environment.setenv("TOKENIZERS_PARALLELISM", "false")
        with servers.running(artifact, name="colbert") as started:
            yield started


@pytest.fixture(scope="module")
def scored(server: Server, published: Path) -> Scored:
    expected = library("similarities", published, QUERIES, FEW)
    return Scored(server=server, name="colbert", parity=PARITY, queries=QUERIES, documents=FEW, expected=expected)


def library(function: str, published: Path, *arguments: Any) -> Any:
    return library_answer("sentence_transformers", f"{ORACLE}:{function}", str(published), *arguments)


def test_a_thousand_documents_are_ranked_as_by_the_library(server: Server, published: Path) -> None:
    answer = server.answer(queries=QUERIES, documents=DOCUMENTS, top_k=100)
    assert answer["usage"]["prompt_tokens"] > len(DOCUMENTS)
    scores = library("similarities", published, QUERIES, DOCUMENTS)
    for expected, found in zip(scores, answer["results"], strict=True):
        np.testing.assert_allclose(found["scores"], expected[found["indices"]], rtol=1e-5)
        # no document that was left out is better than the last one
        left_out = np.delete(expected, found["indices"])
        assert left_out.max() <= found["scores"][-1] * (1 + 1e-5)
        assert found["scores"] == sorted(found["scores"], reverse=True)
    assert server.refusal(queries=QUERIES, documents=[*DOCUMENTS, "one more"])["param"] == "data.documents"


@pytest.mark.parametrize(
    "data",
    [
        # tokenised when the body is read, and while the engine computes what comes before
        {"texts": [LONG] * 20, "input_type": "document", "encoding": "bytes"},
        {"query": LONG, "documents": [LONG] * 19},
    ],
)
def test_the_event_loop_stays_free_for_probes_and_other_requests(server: Server, data: dict[str, Any]) -> None:
    assert servers.event_loop_share(server, {"data": data}) < MOST_OF_THE_LOOP


def test_scores_do_not_depend_on_the_other_documents(server: Server) -> None:
    together = server.answer(query=QUERIES[0], documents=FEW)["results"][0]
    by_index = dict(zip(together["indices"], together["scores"], strict=True))
    for number, document in enumerate(FEW):
        (alone,) = server.answer(query=QUERIES[0], documents=[document])["results"][0]["scores"]
        np.testing.assert_allclose(alone, by_index[number], rtol=1e-6)


def test_every_route_gives_the_scores_of_the_library(scored: Scored) -> None:
    scored.check_pooling()
    scored.check_reranking()
    scored.check_pairs()


def test_the_official_clients_of_cohere_rank_documents(scored: Scored) -> None:
    scored.check_cohere()


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_documents_are_pooled_and_quantised_as_by_the_library(
    dtype: EmbeddingDtype, server: Server, published: Path
) -> None:
    vectors = calibration.read(server.artifact / "model")
    assert vectors is not None
    assert vectors.shape[1] == colbert_builder.DIMENSIONS
    ranges = encodings.ranges_of(vectors)
    expected = library("fewer_rows", published, FEW, 2.0, dtype, ranges)
    data = {"texts": FEW, "is_query": False, "pool_factor": 2, "embedding_dtype": dtype, "encoding": "bytes"}
    response = server.post({"data": data})
    found = encodings.decode_bytes(response.content, response.headers)
    assert response.headers["x-encoder-rows"] == ",".join(str(len(rows)) for rows in expected)
    wanted = np.concatenate(expected)
    assert found.shape == wanted.shape
    # where a number of the engine and one of the library lie on two sides of a border
    assert (found != wanted).mean() < 0.01


async def test_the_python_client_returns_what_the_library_returns(server: Server, published: Path) -> None:
    def called(function: str, *arguments: Any, **options: Any) -> Any:
        oracle = f"encoder_client.tests.oracle:{function}"
        return library_answer("sentence_transformers", oracle, *arguments, **options)

    with MultiVectorEncoder(server.url) as model:
        async with AsyncMultiVectorEncoder(server.url, concurrency=2) as awaited:
            for method, texts in (("encode_query", QUERIES), ("encode_document", FEW)):
                kind = "MultiVectorEncoder"
                expected = called("called", kind, str(published), method, texts, convert_to_numpy=True)
                found = getattr(model, method)(texts, batch_size=3)
                for mine, other, theirs in zip(
                    found, await getattr(awaited, method)(texts, batch_size=3), expected, strict=True
                ):
                    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
                    np.testing.assert_allclose(mine, theirs, atol=1e-5)
                    np.testing.assert_allclose(other, theirs, atol=1e-5)
                np.testing.assert_allclose(getattr(model, method)(texts[0]), expected[0], atol=1e-5)
            # PyLate's prefix stands before each prompt; sentence-transformers has it in those of the two kinds alone
            prompted = called("called", kind, str(published), "encode_document", FEW, prompt="[D] a fact: ")
            for mine, theirs in zip(model.encode_document(FEW, prompt_name="fact"), prompted, strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-5)
            with pytest.raises(InvalidRequestError, match="there is: document, fact, marked, query, summary") as caught:
                model.encode_query("bread", prompt_name="fiction")
            assert caught.value.param == "data.prompt_name"
            scores = called("ranked", str(published), QUERIES[0], FEW)
            best = np.argsort(-scores, kind="stable")[:4]
            ranking = model.rank(QUERIES[0], FEW, top_k=4, batch_size=3, return_documents=True)
            assert [found["corpus_id"] for found in ranking] == best.tolist()
            assert [found["text"] for found in ranking] == [FEW[place] for place in best]
            np.testing.assert_allclose([found["score"] for found in ranking], scores[best], rtol=1e-5)
            everything = await awaited.rank(QUERIES[0], [*DOCUMENTS, *DOCUMENTS[:200]], batch_size=5000)
            assert sorted(found["corpus_id"] for found in everything) == list(range(1200))
        similar = model.similarity(model.encode_query(QUERIES[:1]), model.encode_document(FEW))
        np.testing.assert_allclose(similar[0], scores, rtol=1e-5)
        merged = model.encode_document(FEW, pool_factor=2)
        for rows, wanted in zip(merged, called("merged", str(published), FEW, 2.0), strict=True):
            np.testing.assert_allclose(rows, wanted, atol=1e-5)


async def test_the_examples_of_the_pages_run(server: Server) -> None:
    await documented.run("colbert", server.url, README)


def test_large_bodies_and_other_paths_are_refused(server: Server) -> None:
    large = server.post({"data": {"text": "x" * 10_000_000, "is_query": False}})
    assert (large.status_code, large.json()["error"]["param"]) == (413, "body")
    unknown = server.post({"input": "a"}, "/v1/embeddings")
    assert unknown.status_code == 404
    assert "use POST /pooling or /rerank" in unknown.json()["error"]["message"]


def test_the_example_finds_in_a_vector_store_what_the_server_ranks_first(server: Server) -> None:
    folder = Path(__file__).parents[5] / "examples/search"
    passages = [text for _, text in runpy.run_path(str(folder / "passages.py"))["passages"]()][:1000]
    question = "Why is a model not verified?"
    # with every row in the store, so that only float16 lies between its scores and the server's
    command = ["uv", "run", "--quiet", "--frozen", "--script", str(folder / "search.py"), server.url, question]
    done = subprocess.run(
        [*command, "--pool-factor", "1"], env={**os.environ, "VIRTUAL_ENV": ""}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    about, *lines = done.stdout.splitlines()
    assert about.startswith("1000 passages, ")
    (ranking,) = server.answer(query=question, documents=passages, top_k=5)["results"]
    found = [float(line.split("  ")[0]) for line in lines]
    np.testing.assert_allclose(found, ranking["scores"], atol=2e-4)
    assert lines[0].endswith(passages[ranking["indices"][0]][:100])
