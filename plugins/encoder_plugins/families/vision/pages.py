"""From PDFs to pages in the model's size; one whose pixels are still kept is neither rendered nor scaled again."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import sha256

from cachetools import LRUCache
from PIL import Image

from encoder_plugins.families.vision.pixels import Pixels
from encoder_plugins.inputs.pdf import Pdf, PdfRenderer

# PDFs whose number of pages is kept: a request without `pages` does not say how many there are
_COUNTED = 4096


class Pages:
    """Renders pages, those of one request at a time. Used by several threads at once.

    Args:
        renderer: What renders.
        pixels: What scales, and keeps pixels.
        most: Pages of one request.
    """

    def __init__(self, renderer: PdfRenderer, pixels: Pixels, *, most: int) -> None:
        self._renderer, self._pixels, self._most = renderer, pixels, most
        self._counts: LRUCache[bytes, int] = LRUCache(_COUNTED)
        self._lock = threading.Lock()

    def of(self, pdfs: Mapping[str, Pdf]) -> Generator[tuple[str, int, Image.Image, int], None, None]:
        """Yield the path, the number, the image and its tokens of each page, those that are kept first. Nobody may change an image.

        Args:
            pdfs: What to render, by the path of the object that has the fields of the PDF.

        Raises:
            InvalidRequest: ``encoder_plugins.inputs.pdf`` has the outcome of each kind of PDF.
        """
        digests = {path: sha256(pdf.content).digest() for path, pdf in pdfs.items()}
        missing = dict(pdfs)
        for path, numbers in self._known(pdfs, digests).items():
            left = []
            for number in numbers:
                kept = self._pixels.kept((digests[path], number, pdfs[path].dpi))
                if kept is None:
                    left.append(number)
                else:
                    yield path, number, *kept
            missing[path] = replace(pdfs[path], pages=tuple(left))
        missing = {path: pdf for path, pdf in missing.items() if pdf.pages != ()}
        if not missing:
            return
        last: dict[str, int] = {}
        with closing(self._renderer.pages(missing)) as rendered:
            for path, number, image in rendered:
                last[path] = number
                fitted = self._pixels.fit((digests[path], number, pdfs[path].dpi), image, path=f"{path}.pdf")
                yield path, number, *fitted
        with self._lock:
            self._counts.update({digests[path]: count for path, count in last.items() if missing[path].pages is None})

    def _known(self, pdfs: Mapping[str, Pdf], digests: Mapping[str, bytes]) -> dict[str, Sequence[int]]:
        """Return the pages of each PDF; none where they are not known, or too many, which the renderer says in its own words."""
        with self._lock:
            counts = {path: self._counts.get(digest, 0) for path, digest in digests.items()}
        found: dict[str, Sequence[int]] = {
            path: range(1, counts[path] + 1) if pdf.pages is None else pdf.pages for path, pdf in pdfs.items()
        }
        known = all(found.values()) and sum(map(len, found.values())) <= self._most
        return found if known else {}
