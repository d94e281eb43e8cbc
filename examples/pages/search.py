# /// script
# requires-python = ">=3.11"
# dependencies = ["httpx>=0.28", "numpy>=2", "pillow>=12", "pypdfium2>=5.15,<6", "qdrant-client>=1.15"]
# ///
"""Search the pages of PDFs by how they look: an embedded vector store, a question, and the picture of the page that was found.

The server renders and encodes the pages; text is extracted nowhere.
"""

from __future__ import annotations

import argparse
import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pypdfium2
from qdrant_client import QdrantClient, models

HERE = Path(__file__).parent
# pages of a request: the lowest default limit of a plugin
BATCH = 16
# what the server renders at by default
DPI = 144
COLLECTION = "pages"
# relative; the store has the rows in float16, with 11 bits of mantissa
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Page:
    """One page of a PDF.

    Attributes:
        pdf: The file.
        number: Counted from 1.
    """

    pdf: Path
    number: int

    def png(self, dpi: float = DPI) -> bytes:
        """Return its picture."""
        stream = io.BytesIO()
        with pypdfium2.PdfDocument(self.pdf) as document:
            # as on the server: what has been filled in is on the page, too
            document.init_forms()
            document[self.number - 1].render(scale=dpi / 72).to_pil().save(stream, "PNG", optimize=True)
        return stream.getvalue()


class Retriever:
    """A server of a visual plugin.

    Args:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=300)

    def _pooling(self, **data: Any) -> httpx.Response:
        try:
            response = self._http.post("/pooling", json={"data": data})
        except httpx.TransportError as error:
            raise SystemExit(f"no answer from {self._http.base_url}: {error}") from None
        if response.is_error:
            raise SystemExit(f"the server answered {response.status_code}: {response.text}")
        return response

    def _rows(self, **data: Any) -> tuple[list[np.ndarray], httpx.Headers]:
        response = self._pooling(**data, encoding="bytes", embedding_dtype="float16")
        counts = [int(count) for count in response.headers["x-encoder-rows"].split(",")]
        # a view of the body; nothing is copied
        numbers = np.frombuffer(response.content, "<f2").reshape(sum(counts), -1)
        return np.split(numbers, np.cumsum(counts)[:-1]), response.headers

    def pages(self, pdf: Path) -> Iterator[tuple[Page, np.ndarray]]:
        """Yield each page of a PDF with its rows, `[rows, dimensions]` float16."""
        try:
            content = base64.b64encode(pdf.read_bytes()).decode()
            with pypdfium2.PdfDocument(pdf) as document:
                count = len(document)
        except (OSError, pypdfium2.PdfiumError) as error:
            raise SystemExit(f"{pdf} cannot be read: {error}") from None
        for first in range(1, count + 1, BATCH):
            last = min(first + BATCH - 1, count)
            rows, headers = self._rows(pdf=content, pages=f"{first}-{last}", dpi=DPI)
            for number, each in zip(headers["x-encoder-pages"].split(","), rows, strict=True):
                yield Page(pdf, int(number)), each

    def question(self, text: str) -> np.ndarray:
        """Return the rows of a question, `[rows, dimensions]` float16."""
        return self._rows(text=text, input_type="query")[0][0]

    def scores(self, text: str, pages: Sequence[Page]) -> list[float]:
        """Return the score of each page, computed by the server from pictures of them."""
        documents = [{"image": base64.b64encode(page.png()).decode()} for page in pages]
        (result,) = self._pooling(query=text, documents=documents).json()["data"]["results"]
        found = dict(zip(result["indices"], result["scores"], strict=True))
        return [found[place] for place in range(len(pages))]


def index(store: QdrantClient, rows: Sequence[np.ndarray]) -> None:
    """Put the rows of every page into the store, as one vector of several."""
    several = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    size = rows[0].shape[1]
    vectors = models.VectorParams(size=size, distance=models.Distance.DOT, multivector_config=several)
    store.create_collection(COLLECTION, vectors_config=vectors)
    points = [models.PointStruct(id=number, vector=each.tolist()) for number, each in enumerate(rows)]
    store.upload_points(COLLECTION, points)


def main() -> None:
    """Index the pages, ask, print, and write the picture of the best page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the server, for example http://localhost:8000")
    parser.add_argument("question")
    parser.add_argument("pdfs", nargs="*", type=Path, default=[HERE / "sizes.pdf", HERE / "operation.pdf"])
    parser.add_argument("--top", type=int, default=3, help="pages to print, 16 at most with --rescore")
    parser.add_argument("--picture", type=Path, help="the PNG that the best page is written to")
    parser.add_argument("--rescore", action="store_true", help="also print the server's own scores, and compare them")
    given = parser.parse_args()

    retriever = Retriever(given.url)
    found = [each for pdf in given.pdfs for each in retriever.pages(pdf)]
    store = QdrantClient(":memory:")
    index(store, [rows for _, rows in found])
    print(
        f"{len(found)} pages, {sum(len(rows) for _, rows in found)} rows, {sum(r.nbytes for _, r in found) >> 10} KiB"
    )

    query = retriever.question(given.question)
    hits = store.query_points(COLLECTION, query=query.tolist(), limit=given.top).points
    best = [found[int(hit.id)][0] for hit in hits]
    scores = retriever.scores(given.question, best) if given.rescore else [None] * len(best)
    for page, hit, score in zip(best, hits, scores, strict=True):
        own = "" if score is None else f"  server {score:.4f}"
        print(f"{hit.score:.4f}{own}  {page.pdf.name}, page {page.number}")
    if given.rescore and abs(hits[0].score - scores[0]) > TOLERANCE * abs(scores[0]):
        raise SystemExit(f"the store scores the first page {hits[0].score:.4f}, the server {scores[0]:.4f}")
    if given.picture:
        given.picture.write_bytes(best[0].png(96))
        print(f"wrote {given.picture}")


if __name__ == "__main__":
    main()
