"""The pages of a PDF of a request, as images. They are rendered in a process of limited memory and time.

| a PDF | its outcome |
|---|---|
| one without a password, or with an empty one | its pages are rendered: annotations and the values of form fields, too |
| one that needs a password | refused |
| an address | refused, or fetched before: `inputs.remote` |
| not a PDF, damaged, or truncated | refused, unless PDFium can restore it and the page |
| no pages, a page that there is not, more pages than the limit | refused |
| a page of more pixels than the limit, or with sides of a ratio above 200 | refused, before anything is rendered |
| pages that take too long, too much memory, or crash PDFium | refused; the process is replaced |
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, Final, Protocol

from PIL import Image

from encoder_plugins.errors import InvalidRequest, Overloaded
from encoder_plugins.inputs import remote
from encoder_plugins.inputs.data_uri import file_of
from encoder_plugins.inputs.image import MOST_RATIO
from encoder_plugins.inputs.limited_process import LimitedProcess, ProcessEnded

DEFAULT_DPI: Final = 144
# imported by its process only: PDFium stays out of the server
_WORKER = Path(__file__).with_name("pdf_worker.py")
# where readers look for it
_BEGINNING = 1024
_RANGE = re.compile(r"([1-9][0-9]{0,17})(?:-([1-9][0-9]{0,17}))?")
# by the clock, for a second of a processor
_CLOCK_SECONDS = 4


class PdfLimits(Protocol):
    """The limits of requests that hold a PDF; ``encoder_plugins.plugin.PDF_LIMITS`` describes them."""

    @property
    def pdf_bytes(self) -> int:
        """Bytes of the file."""

    @property
    def pdf_pages(self) -> int:
        """Pages of all PDFs that one request renders."""

    @property
    def pdf_dpi(self) -> int:
        """Dots per inch."""

    @property
    def pdf_page_pixels(self) -> int:
        """Pixels of one page."""

    @property
    def pdf_seconds(self) -> int:
        """Seconds of a processor."""

    @property
    def pdf_memory_bytes(self) -> int:
        """Bytes of the process."""

    @property
    def pdf_in_flight(self) -> int:
        """Requests whose PDFs are fetched, wait, or are rendered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pdf:
    """Pages to render.

    Attributes:
        pages: Their numbers, from 1; None for all of them.
        dpi: Dots per inch.
        content: The file; empty while it is still to be fetched.
        address: Where it is fetched; None where the request has the file.
    """

    pages: tuple[int, ...] | None
    dpi: int
    content: bytes = b""
    address: str | None = None


def pdf_of(
    value: str, pages: str | None, dpi: int | None, limits: PdfLimits, *, path: str, hosts: Collection[str] = ()
) -> Pdf:
    """Return the checked fields of a request.

    Args:
        value: The field ``pdf``.
        pages: The field ``pages``; None for all of them.
        dpi: The field ``dpi``; None for the default, or the limit where that is less.
        limits: What they are held to.
        path: The path of the object that has these fields, for messages.
        hosts: From where it may be fetched, from ``inputs.remote.host_of``.

    Raises:
        InvalidRequest: One of them is not what it should be, or exceeds a limit.
    """
    if dpi is not None and dpi > limits.pdf_dpi:
        raise InvalidRequest(f"{dpi} dots per inch; the limit is {limits.pdf_dpi} (pdf_dpi)", param=f"{path}.dpi")
    numbers = None if pages is None else page_numbers(pages, limits, path=f"{path}.pages")
    found = Pdf(pages=numbers, dpi=min(DEFAULT_DPI, limits.pdf_dpi) if dpi is None else dpi)
    if hosts and remote.is_address(value):
        return replace(found, address=remote.check(value, hosts, path=f"{path}.pdf"))
    content = file_of(value, limits.pdf_bytes, what="PDF", media_type="application/pdf", path=f"{path}.pdf")
    return with_content(found, content, path=path)


def with_content(pdf: Pdf, content: bytes, *, path: str) -> Pdf:
    """Return a PDF with its file.

    Args:
        pdf: Its pages.
        content: The file, which keeps the limit of bytes.
        path: The path of the object that has the fields of a PDF, for messages.

    Raises:
        InvalidRequest: The file is not a PDF.
    """
    if b"%PDF-" not in content[:_BEGINNING]:
        raise InvalidRequest("it is not a PDF: it does not begin with %PDF-", param=f"{path}.pdf")
    return replace(pdf, content=content)


def page_numbers(value: str, limits: PdfLimits, *, path: str) -> tuple[int, ...]:
    """Return the pages that a field such as ``1-3,7`` names, in its order.

    Raises:
        InvalidRequest: It is not a list of pages and ranges, names one twice, or more than the limit.
    """
    found: dict[int, None] = {}
    for part in value.split(","):
        # a value of many parts is refused before all of them are read
        match = _RANGE.fullmatch(part.strip(" "))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise InvalidRequest("pages are numbers from 1 and ranges of them, such as 1-3,7", param=path)
        if (count := last - first + 1 + len(found)) > limits.pdf_pages:
            raise InvalidRequest(f"{count} pages or more; the limit is {limits.pdf_pages} (pdf_pages)", param=path)
        for number in range(first, last + 1):
            if number in found:
                raise InvalidRequest(f"page {number} is there twice", param=path)
            found[number] = None
    return tuple(found)


class PdfRenderer:
    """Renders the pages of PDFs in a process of its own, those of one request at a time.

    Args:
        limits: What PDFs are held to.

    Attributes:
        threads: One thread, for callers that must not wait for each other in threads of the server.
    """

    def __init__(self, limits: PdfLimits) -> None:
        self._limits = limits
        self._process = LimitedProcess(str(_WORKER), memory_bytes=limits.pdf_memory_bytes)
        self._slots = BoundedSemaphore(limits.pdf_in_flight)
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="pdf")

    @contextmanager
    def slot(self, *, path: str) -> Iterator[None]:
        """Hold one of the slots of requests whose PDFs are fetched, wait, or are rendered, for as long as the block runs.

        Args:
            path: The path of the object that has the fields of a PDF, for messages.

        Raises:
            Overloaded: All of them are taken.
        """
        if not self._slots.acquire(blocking=False):
            raise Overloaded(
                f"Too many concurrent requests with a PDF (limit {self._limits.pdf_in_flight}, pdf_in_flight)",
                param=f"{path}.pdf",
            )
        try:
            yield
        finally:
            self._slots.release()

    def pages(self, pdfs: Mapping[str, Pdf]) -> Generator[tuple[str, int, Image.Image], None, None]:
        """Yield the path, the number and the pixels, mode RGB, of each page, while the next one is being rendered.

        Args:
            pdfs: What to render, in order, by the path of the object that has the fields of the PDF. They share the limits of pages and
                time.

        Raises:
            InvalidRequest: The module's documentation has the outcome of each kind of PDF.
        """
        limits, paths = self._limits, list(pdfs)
        most = {"pages": limits.pdf_pages, "pixels": limits.pdf_page_pixels, "ratio": MOST_RATIO}
        wanted = [{"bytes": len(pdf.content), "pages": pdf.pages, "dpi": pdf.dpi} for pdf in pdfs.values()]
        call = self._process.call(
            {"pdfs": wanted, "most": most},
            b"".join(pdf.content for pdf in pdfs.values()),
            processor_seconds=limits.pdf_seconds,
            seconds=_CLOCK_SECONDS * limits.pdf_seconds,
            # each row of a page is filled up to a multiple of four bytes
            most_bytes=4 * limits.pdf_page_pixels,
        )
        path, refused = paths[0], None
        try:
            with closing(call) as answers:
                for described, content in answers:
                    if "refused" in described:
                        refused = described["refused"]
                    elif "pdf" in described:
                        path = paths[described["pdf"]]
                    else:
                        yield path, described["page"], _image(described, content)
        except ProcessEnded as ended:
            raise InvalidRequest(self._exceeded(ended), param=f"{path}.pdf") from None
        if refused is not None:
            raise self._refusal(refused, pdfs[path].dpi, path)

    def close(self) -> None:
        """End the process."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self._process.close()

    def _exceeded(self, ended: ProcessEnded) -> str:
        seconds = self._limits.pdf_seconds
        if ended.timed_out:
            return (
                f"its pages take longer than {seconds} s of a processor, or {_CLOCK_SECONDS * seconds} s by the clock, the limit"
                " (pdf_seconds)"
            )
        return (
            f"PDFium crashed, or needed more than {self._limits.pdf_memory_bytes} bytes, the limit (pdf_memory_bytes)"
        )

    def _refusal(self, values: dict[str, Any], dpi: int, path: str) -> InvalidRequest:
        limits, why, page, count = self._limits, values["why"], values.get("page"), values.get("count")
        if why == "missing":
            return InvalidRequest(f"page {page} is not there: the PDF has {count}", param=f"{path}.pages")
        if why == "pages":
            before = f", and those before it have {values['before']}" if values["before"] else ""
            return InvalidRequest(
                f"the PDF has {count} pages{before}; the limit is {limits.pdf_pages} a request (pdf_pages): send pages, such as"
                f" 1-{limits.pdf_pages}",
                param=f"{path}.pages",
            )
        sides = f"page {page} has {values.get('width')} × {values.get('height')} pixels at {dpi} dots per inch"
        message = {
            "encrypted": "the PDF is encrypted and needs a password; send it without one",
            "damaged": "the PDF is damaged or truncated, or has no pages",
            "pixels": f"{sides}; the limit is {limits.pdf_page_pixels} pixels a page (pdf_page_pixels)",
            "ratio": f"{sides}; a side may be {MOST_RATIO} times the other at most",
            "page": f"page {page} cannot be rendered: it is damaged, or needs more than {limits.pdf_memory_bytes} bytes, the"
            " limit (pdf_memory_bytes)",
        }[why]
        return InvalidRequest(message, param=f"{path}.pdf")


def _image(described: dict[str, Any], content: bytes) -> Image.Image:
    size = described["width"], described["height"]
    return Image.frombytes("RGB", size, content, "raw", "RGB", described["stride"], 1)
