"""Documents scored over HTTP by every route that does it, and by Cohere's official clients, against the library's scores.

For servers of any plugin whose answer a score is. The bounds are those of the plugin's parity check in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cohere
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from encoder_plugins.parity.protocol import Parity
from encoder_plugins.serving.tests.servers import Server

Scores = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A server, and what the library says of the same checkpoint.

    Attributes:
        server: The server.
        name: What it calls the model.
        parity: The plugin's side of the parity check.
        queries: At least two queries.
        documents: Documents, more than three.
        expected: The library's scores `[queries, documents]`.
    """

    server: Server
    name: str
    parity: Parity
    queries: Sequence[str]
    documents: Sequence[str]
    expected: Scores

    def outside(self, found: Any, expected: Scores) -> dict[str, float]:
        """Return the metrics of scores `[documents]` that are outside the bounds, those of their order included."""
        case = {"documents": list(self.documents)}
        metrics = self.parity.compare(case, np.asarray(found, np.float32), {"scores": expected}).metrics
        bounds = {bound.metric: bound for bound in self.parity.tolerances["float32"]}
        return {name: value for name, value in metrics.items() if not bounds[name].holds(value)}

    def best(self, query: int, count: int | None = None) -> list[int]:
        """Return the positions of the documents that the library finds best, the best first."""
        found: list[int] = np.argsort(-self.expected[query], kind="stable")[:count].tolist()
        return found

    def check_pooling(self) -> None:
        """``/pooling``: several queries, all documents or the best of them, and one query alone."""
        whole = self.server.answer(queries=self.queries, documents=self.documents)["results"]
        best = self.server.answer(queries=self.queries, documents=self.documents, top_k=3)["results"]
        for number, (ranking, cut) in enumerate(zip(whole, best, strict=True)):
            scores = np.full(len(self.documents), np.nan, np.float32)
            scores[ranking["indices"]] = ranking["scores"]
            assert self.outside(scores, self.expected[number]) == {}
            assert ranking["indices"] == self.best(number)
            assert ranking["scores"] == sorted(ranking["scores"], reverse=True)
            assert cut["indices"] == self.best(number, 3)
            assert cut["scores"] == pytest.approx(ranking["scores"][:3], rel=1e-6)
        (alone,) = self.server.answer(query=self.queries[1], documents=self.documents, top_k=1)["results"]
        assert alone["indices"] == self.best(1, 1)

    def check_reranking(self) -> None:
        """The routes of Cohere's and Jina's APIs."""
        body = {"model": self.name, "query": self.queries[0], "documents": self.documents, "return_documents": True}
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            answer = self.server.post({**body, "top_n": 2}, path).json()
            assert [one["document"]["text"] for one in answer["results"]] == [
                self.documents[place] for place in self.best(0, 2)
            ]
            assert answer["usage"]["total_tokens"] > 0
            scores = np.full(len(self.documents), np.nan, np.float32)
            for one in self.server.post(body, path).json()["results"]:
                scores[one["index"]] = one["relevance_score"]
            assert self.outside(scores, self.expected[0]) == {}

    def check_pairs(self) -> None:
        """The routes of vLLM's API: one query, and a query for each document."""
        turns = [number % len(self.queries) for number in range(len(self.documents))]
        wanted = self.expected[turns, range(len(self.documents))]
        for path, (first, second) in (("/score", ("text_1", "text_2")), ("/v1/score", ("queries", "documents"))):
            one = self.server.post({first: self.queries[0], second: self.documents}, path).json()
            assert self.outside([pair["score"] for pair in one["data"]], self.expected[0]) == {}
            queries = [self.queries[number] for number in turns]
            pairs = self.server.post({first: queries, second: self.documents}, path).json()
            assert [pair["index"] for pair in pairs["data"]] == list(range(len(self.documents)))
            assert self.outside([pair["score"] for pair in pairs["data"]], wanted) == {}

    def check_cohere(self) -> None:
        """Both of Cohere's official clients, and how they raise what is refused."""
        with httpx.Client(timeout=120) as http:
            client = cohere.ClientV2(api_key="none", base_url=self.server.url, httpx_client=http)
            ranked = client.rerank(model=self.name, query=self.queries[0], documents=self.documents, top_n=3)
            assert [result.index for result in ranked.results] == self.best(0, 3)
            assert ranked.id
            assert ranked.meta is not None
            assert ranked.meta.tokens is not None
            assert (ranked.meta.tokens.input_tokens or 0) > len(self.documents)
            first = cohere.Client(api_key="none", base_url=self.server.url, httpx_client=http)
            documents = [{"text": text} for text in self.documents]
            older = first.rerank(
                model=self.name, query=self.queries[0], documents=documents, return_documents=True
            ).results
            assert [result.index for result in older] == self.best(0)
            assert [result.document.text for result in older if result.document] == [
                self.documents[result.index] for result in older
            ]
            scores = np.full(len(self.documents), np.nan, np.float32)
            scores[[result.index for result in older]] = [result.relevance_score for result in older]
            assert self.outside(scores, self.expected[0]) == {}
            with pytest.raises(cohere.BadRequestError, match="top_n"):
                client.rerank(model=self.name, query=self.queries[0], documents=self.documents, top_n=0)
            with pytest.raises(cohere.NotFoundError, match="another"):
                client.rerank(model="another", query=self.queries[0], documents=self.documents)
