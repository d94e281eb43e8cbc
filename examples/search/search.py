# /// script
# requires-python = ">=3.11"
# dependencies = ["httpx>=0.28", "numpy>=2", "qdrant-client>=1.15"]
# ///
"""Search the pages of this repository: 1 000 passages in an embedded vector store, a question, the best answers reranked.

The store keeps every second row of a passage's (rows that are alike become their mean), which halves its memory; the server then scores the
best passages with all of their rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
from passages import passages
from qdrant_client import QdrantClient, models

PASSAGES = 1000

# texts of a request: the server's default limit is 256
BATCH = 200
COLLECTION = "pages"


class Retriever:
    """A server of a ColBERT plugin.

    Args:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=300)

    def _post(self, route: str, body: dict[str, Any]) -> httpx.Response:
        try:
            response = self._http.post(route, json=body)
        except httpx.TransportError as error:
            raise SystemExit(f"no answer from {self._http.base_url}: {error}") from None
        if response.is_error:
            raise SystemExit(f"the server answered {response.status_code}: {response.text}")
        return response

    def rows(self, texts: Sequence[str], side: str, pool_factor: float | None = None) -> list[np.ndarray]:
        """Return the rows of each text, `[rows, dimensions]` float16."""
        found: list[np.ndarray] = []
        for first in range(0, len(texts), BATCH):
            data = {"texts": texts[first : first + BATCH], "input_type": side, "pool_factor": pool_factor}
            wanted = {"encoding": "bytes", "embedding_dtype": "float16"}
            response = self._post("/pooling", {"data": {**data, **wanted}})
            counts = [int(count) for count in response.headers["x-encoder-rows"].split(",")]
            numbers = np.frombuffer(response.content, "<f2").reshape(sum(counts), -1)
            found += np.split(numbers, np.cumsum(counts)[:-1])
        return found

    def ranked(self, query: str, documents: Sequence[str], top_n: int) -> list[tuple[int, float]]:
        """Return positions and scores of the best documents, the best first."""
        response = self._post("/rerank", {"query": query, "documents": list(documents), "top_n": top_n})
        return [(result["index"], result["relevance_score"]) for result in response.json()["results"]]


def index(store: QdrantClient, rows: Sequence[np.ndarray]) -> None:
    """Put the rows of every passage into the store, as one vector of several."""
    several = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    size = rows[0].shape[1]
    vectors = models.VectorParams(size=size, distance=models.Distance.DOT, multivector_config=several)
    store.create_collection(COLLECTION, vectors_config=vectors)
    points = [models.PointStruct(id=number, vector=each.tolist()) for number, each in enumerate(rows)]
    store.upload_points(COLLECTION, points)


def main() -> None:
    """Index the passages, ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the server, for example http://localhost:8000")
    parser.add_argument("question", nargs="+")
    parser.add_argument(
        "--pool-factor", type=float, default=2, help="by how much the store's rows are fewer; 1 keeps all"
    )
    parser.add_argument("--candidates", type=int, default=50, help="passages of the store that are reranked")
    parser.add_argument("--top", type=int, default=5, help="passages to print")
    given = parser.parse_args()
    question = " ".join(given.question)

    found = list(passages())[:PASSAGES]
    texts = [text for _, text in found]
    retriever = Retriever(given.url)
    rows = retriever.rows(texts, "document", given.pool_factor if given.pool_factor > 1 else None)
    store = QdrantClient(":memory:")
    index(store, rows)
    print(f"{len(rows)} passages, {sum(map(len, rows))} rows, {sum(each.nbytes for each in rows) >> 10} KiB")

    (query,) = retriever.rows([question], "query")
    hits = store.query_points(COLLECTION, query=query.tolist(), limit=given.candidates).points
    candidates = [int(hit.id) for hit in hits]
    for position, score in retriever.ranked(question, [texts[number] for number in candidates], given.top):
        page, text = found[candidates[position]]
        print(f"{score:.4f}  {page}: {text[:100]}")


if __name__ == "__main__":
    main()
