"""Renders pages of PDFs. Standard library and pypdfium2 only; ``inputs.limited_worker`` runs it as a file.

PDFium is not thread-safe, and a file can make it crash, or take gigabytes, or minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pypdfium2 import PdfDocument, PdfiumError
from pypdfium2.raw import FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY, FPDF_LoadMemDocument64

Answer = tuple[dict[str, Any], bytes | memoryview]


class Refused(Exception):  # noqa: N818 - an answer
    """The pages cannot be rendered; ``values`` say why."""

    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        self.values = values


def answers(wanted: dict[str, Any], content: bytes) -> Iterator[Answer]:
    """Yield the position of each PDF, and behind it its pages, `[height, stride]` bytes, RGB.

    What stands in the place of a page says why there is none, and is the last.

    Args:
        wanted: Of each PDF, under ``pdfs``, its ``bytes``, its ``pages``, numbers from 1, or None for all of them, and ``dpi``; under
            ``most`` the most ``pages`` of all, the most ``pixels`` of a page, and the largest ``ratio`` of its sides.
        content: The files, one behind the other.
    """
    start, before, most = 0, 0, wanted["most"]
    try:
        for position, pdf in enumerate(wanted["pdfs"]):
            yield {"pdf": position}, b""
            document = opened(content[start : start + pdf["bytes"]])
            start += pdf["bytes"]
            try:
                numbers = numbers_of(document, pdf["pages"], before, most["pages"])
                before += len(numbers)
                yield from rendered(document, numbers, pdf["dpi"] / 72, most)
            finally:
                document.close()
    except Refused as refused:
        yield {"refused": refused.values}, b""


def opened(content: bytes) -> PdfDocument:
    """Return the document; raises Refused."""
    try:
        document = PdfDocument(content)
    except PdfiumError as error:
        locked = error.err_code in (FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY)
        if locked:
            # a PDF without pages leaves PDFium's last error as it is, which from here on is that of an empty file
            FPDF_LoadMemDocument64(b"", 0, None)
        raise Refused(why="encrypted" if locked else "damaged") from None
    try:
        # what has been filled in is on the page, too; there is no JavaScript in this build
        document.init_forms()
    except PdfiumError:
        document.close()
        raise Refused(why="damaged") from None
    return document


def numbers_of(document: PdfDocument, pages: list[int] | None, before: int, most: int) -> list[int]:
    """Return the pages to render, ``most`` with those ``before``; raises Refused."""
    count = len(document)
    numbers = pages or list(range(1, count + 1))
    if missing := [page for page in numbers if page > count]:
        raise Refused(why="missing", page=missing[0], count=count)
    if before + len(numbers) > most:
        raise Refused(why="pages", count=len(numbers), before=before)
    return numbers


def rendered(document: PdfDocument, pages: list[int], scale: float, most: dict[str, Any]) -> Iterator[Answer]:
    """Yield the pages; raises Refused."""
    # all of them before the first is rendered
    sizes = [size_of(document, page, scale, most) for page in pages]
    for number, size in zip(pages, sizes, strict=True):
        try:
            page = document[number - 1]
            if pixels_of(page.get_size(), scale) != size:
                raise Refused(why="page", page=number)
            bitmap = page.render(scale=scale, rev_byteorder=True)
        except (PdfiumError, MemoryError, ValueError):
            raise Refused(why="page", page=number) from None
        described = {"page": number, "width": bitmap.width, "height": bitmap.height, "stride": bitmap.stride}
        yield described, memoryview(bitmap.buffer)
        bitmap.close()
        page.close()


def size_of(document: PdfDocument, number: int, scale: float, most: dict[str, Any]) -> tuple[int, int]:
    """Return width and height of a page in pixels, from its dictionary alone; raises Refused."""
    try:
        width, height = pixels_of(document.get_page_size(number - 1), scale)
    except (PdfiumError, ValueError, OverflowError):
        raise Refused(why="page", page=number) from None
    if width * height > most["pixels"]:
        raise Refused(why="pixels", page=number, width=width, height=height)
    if max(width, height) > most["ratio"] * min(width, height):
        raise Refused(why="ratio", page=number, width=width, height=height)
    return width, height


def pixels_of(size: tuple[float, float], scale: float) -> tuple[int, int]:
    """Return the pixels along the sides of a page, as ``render`` rounds them."""
    return math.ceil(size[0] * scale), math.ceil(size[1] * scale)
