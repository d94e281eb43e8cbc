"""Scores, rankings and vectors over HTTP, against the library and with the clients that users have. One real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.families.retrieval.cases import PASSAGES, QUESTION
from encoder_plugins.families.retrieval.tests.scoring_routes import Scored
from encoder_plugins.models.embeddinggemma.parity import PARITY
from encoder_plugins.models.embeddinggemma.tests import tiny
from encoder_plugins.serving.tests import servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ORACLE = "encoder_plugins.families.embedding.tests.oracle"
QUERIES = [QUESTION, "bread", "quiet gardens and small boats"]
# shorter than the checkpoint's limit, and beyond it
DOCUMENTS = [*PASSAGES, " ".join([*PASSAGES, *PASSAGES, *PASSAGES])]
# the smaller of the two sizes that the checkpoint has
SIZE = 128


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def scored(published: Path) -> Iterator[Scored]:
    """A server, and what the library says of the same texts."""
    artifact = servers.prepare("embeddinggemma", published, published.parent / ("a" * 64))
    with servers.running(artifact, name="gemma") as server:
        yield Scored(
            server=server,
            name="gemma",
            parity=PARITY,
            queries=QUERIES,
            documents=DOCUMENTS,
            expected=library(published, "similarities", QUERIES, DOCUMENTS),
        )


def library(published: Path, function: str, *arguments: Any) -> Any:
    return library_answer("sentence_transformers", f"{ORACLE}:{function}", str(published), *arguments)


def test_documents_are_ranked_by_several_queries_as_by_the_library(scored: Scored, published: Path) -> None:
    scored.check_pooling()
    # the prompts of the two sides of retrieval are not each other's
    exchanged = library(published, "similarities", DOCUMENTS, QUERIES).T
    assert scored.outside(exchanged[0], scored.expected[0])


def test_every_route_gives_the_scores_of_the_library(scored: Scored) -> None:
    scored.check_reranking()
    scored.check_pairs()


def test_the_official_clients_of_cohere_rank_documents(scored: Scored) -> None:
    scored.check_cohere()


def test_vectors_that_are_cut_rank_documents_as_by_the_library(scored: Scored, published: Path) -> None:
    def vectors(side: str, texts: list[str]) -> Any:
        answer = scored.server.answer(texts=texts, input_type=side, dimensions=SIZE)
        return np.array(answer["embeddings"], np.float32)

    found = vectors("query", QUERIES) @ vectors("document", DOCUMENTS).T
    expected = library(published, "similarities", QUERIES, DOCUMENTS, SIZE)
    for ours, theirs, whole in zip(found, expected, scored.expected, strict=True):
        assert scored.outside(ours, theirs) == {}
        # what is cut off counts
        assert scored.outside(ours, whole)


def test_the_official_client_of_openai_gets_the_vectors_of_the_library(scored: Scored, published: Path) -> None:
    case = {"normalize": True, "dimensions": SIZE, "prompt_name": None}
    cases = [{**case, "text": text, "input_type": "query"} for text in QUERIES]
    expected = library(published, "vectors", cases)
    with openai.OpenAI(base_url=f"{scored.server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(
            model="gemma", input=QUERIES, dimensions=SIZE, extra_body={"input_type": "query"}
        )
        with pytest.raises(openai.BadRequestError, match="there are: 160, 128") as caught:
            client.embeddings.create(model="gemma", input="a", dimensions=100)
    assert caught.value.param == "dimensions"
    assert [entry.index for entry in found.data] == [0, 1, 2]
    for entry, theirs in zip(found.data, expected, strict=True):
        metrics = PARITY.compare({}, np.array(entry.embedding, np.float32), {"vector": theirs}).metrics
        assert all(bound.holds(metrics[bound.metric]) for bound in PARITY.tolerances["float32"][:2]), metrics
