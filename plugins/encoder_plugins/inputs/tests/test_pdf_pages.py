"""Pages of PDFs: equal to what PDFium renders, and files that must not hurt the server."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from PIL import Image, ImageChops

from encoder_plugins.errors import InvalidRequest, Overloaded
from encoder_plugins.inputs.pdf import Pdf, PdfRenderer, page_numbers, pdf_of
from encoder_plugins.inputs.tests import pdfs
from encoder_plugins.inputs.tests.pdfs import pdf


@dataclass(frozen=True)
class Limits:
    pdf_bytes: int = 100_000
    pdf_pages: int = 4
    pdf_dpi: int = 300
    pdf_page_pixels: int = 1_000_000
    pdf_seconds: int = 1
    pdf_memory_bytes: int = 1 << 30
    pdf_in_flight: int = 2


LIMITS = Limits()


@pytest.fixture(scope="module")
def renderer() -> Iterator[PdfRenderer]:
    found = PdfRenderer(LIMITS)
    yield found
    found.close()


def rendered(
    renderer: PdfRenderer, content: bytes, pages: tuple[int, ...] | None = None, dpi: int = 144
) -> list[tuple[int, Image.Image]]:
    found = list(renderer.pages({"data": Pdf(content=content, pages=pages, dpi=dpi)}))
    assert {path for path, _, _ in found} <= {"data"}
    return [(number, image) for _, number, image in found]


def refusal(renderer: PdfRenderer, content: bytes, pages: tuple[int, ...] | None = None) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as refused:
        rendered(renderer, content, pages)
    return refused.value.param, refused.value.message


SEVERAL = pdf(
    (b"0 0 200 300", b"0 0 101.3 57.7", b"0 0 100 100"),
    (pdfs.text("first"), pdfs.text("second"), b"1 0 0 rg 0 50 100 50 re f"),
    page=pdfs.FONT,
)
FORM = pdf(
    page=b"/Annots [3 0 R]",
    catalogue=b"/AcroForm << /Fields [3 0 R] /DA (/Helv 12 Tf) >>",
    others=[
        b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (a) /V (value) /DA (/Helv 12 Tf) /Rect [10 10 90 40] /MK << /BG [1 0 0] >> >>"
    ],
)


@pytest.mark.parametrize(
    ("content", "pages", "dpi"),
    [
        (SEVERAL, None, 144),
        (SEVERAL, (3, 1), 96),
        (pdf((b"0 0 200 300",), page=b"/Rotate 90 /CropBox [10 10 110 210]"), None, 200),
        (FORM, None, 72),
        # nothing a reader could not restore
        (SEVERAL[: SEVERAL.rindex(b"startxref")], None, 50),
    ],
    ids=["all", "two of three", "turned and cropped", "form", "without its end"],
)
def test_pages_have_the_pixels_of_pdfium(
    renderer: PdfRenderer, content: bytes, pages: tuple[int, ...] | None, dpi: int
) -> None:
    import pypdfium2

    document = pypdfium2.PdfDocument(content)
    document.init_forms()
    wanted = pages or tuple(range(1, len(document) + 1))
    found = rendered(renderer, content, pages, dpi)
    assert tuple(number for number, _ in found) == wanted
    for number, image in found:
        expected = document[number - 1].render(scale=dpi / 72).to_pil()
        assert (image.mode, image.size) == ("RGB", expected.size)
        assert ImageChops.difference(image, expected).getbbox() is None
        # there is something on each page
        assert len(image.getcolors(1 << 20) or ()) > 1
    document.close()


@pytest.mark.parametrize(
    ("content", "pages", "param", "says"),
    [
        (SEVERAL, (1, 4), "data.pages", "page 4 is not there: the PDF has 3"),
        (SEVERAL, page_numbers("99999999999", LIMITS, path=""), "data.pages", "page 99999999999 is not there: the PDF has 3"),
        (pdf(pdfs.A_HUNDRED * 5), None, "data.pages", "has 5 pages; the limit is 4 a request (pdf_pages): send pages, such"),
        (pdf(()), None, "data.pdf", "has no pages"),
        (pdf(trailer=pdfs.ENCRYPTED), None, "data.pdf", "is encrypted and needs a password"),
        (b"%PDF-1.7\nnothing", None, "data.pdf", "damaged or truncated"),
        (SEVERAL[: len(SEVERAL) // 2], None, "data.pdf", "damaged or truncated"),
        (
            pdf((b"0 0 100 100", b"0 0 14400 14400")),
            None,
            "data.pdf",
            "page 2 has 28800 × 28800 pixels at 144 dots per inch; the limit is 1000000 pixels a page (pdf_page_pixels)",
        ),
        (pdf((b"0 0 1 900",)), None, "data.pdf", "page 1 has 2 × 1800 pixels at 144 dots per inch; a side may be 200 times"),
        (pdf(contents=(pdfs.SLOW,)), None, "data.pdf", "longer than 1 s of a processor, or 4 s by the clock, the limit (pdf_s"),
    ],
    ids=["out of range", "far out of range", "too many", "none", "encrypted", "damaged", "truncated", "large", "narrow", "slow"],
)  # fmt: skip
def test_a_pdf_that_is_not_rendered_is_refused_and_the_next_one_is(
    renderer: PdfRenderer, content: bytes, pages: tuple[int, ...] | None, param: str, says: str
) -> None:
    field, message = refusal(renderer, content, pages)
    assert (field, says in message) == (param, True), message
    assert [number for number, _ in rendered(renderer, SEVERAL)] == [1, 2, 3]


def test_the_reason_of_a_refusal_is_not_that_of_another_pdf_before_it(renderer: PdfRenderer) -> None:
    encrypted, empty = pdf(trailer=pdfs.ENCRYPTED), pdf(())
    for content, says in ((encrypted, "is encrypted"), (empty, "has no pages"), (encrypted, "is encrypted")):
        assert says in refusal(renderer, content)[1]


def test_pdfs_of_one_request_share_its_limits_and_the_one_that_is_refused_is_named(renderer: PdfRenderer) -> None:
    first, second = Pdf(content=SEVERAL, pages=(3, 1), dpi=72), Pdf(content=pdf((b"0 0 50 60",)), pages=None, dpi=144)
    found = [(path, number, image.size) for path, number, image in renderer.pages({"[0]": first, "[4]": second})]
    assert found == [("[0]", 3, (100, 100)), ("[0]", 1, (200, 300)), ("[4]", 1, (100, 120))]
    for others, param, says in (
        (
            [replace(first, pages=None)],
            "[1].pages",
            "the PDF has 3 pages, and those before it have 2; the limit is 4 a req",
        ),
        ([replace(second, content=b"%PDF-1.7")], "[1].pdf", "damaged or truncated"),
        ([replace(second, content=pdf((b"0 0 9999 9999",)))], "[1].pdf", "page 1 has 19998 × 19998 pixels at 144 dots"),
        ([replace(second, content=pdf(contents=(pdfs.SLOW,)))], "[1].pdf", "longer than 1 s of a processor"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            list(renderer.pages({f"[{place}]": each for place, each in enumerate([first, *others])}))
        assert (refused.value.param, says in refused.value.message) == (param, True), refused.value.message


@pytest.mark.parametrize(
    "box", [b"0 0 0 0", b"100 100 0 0", b"0 0 .01 .01", b"0 0 1e30 1e30", b"a b c d", b"-5 -5 5 5"]
)
def test_a_page_of_an_unusual_size_has_at_least_one_pixel(renderer: PdfRenderer, box: bytes) -> None:
    ((_, image),) = rendered(renderer, pdf((box,)), dpi=40)
    assert min(image.size) >= 1
    assert image.size[0] * image.size[1] <= LIMITS.pdf_page_pixels


def test_a_page_that_needs_too_much_memory_is_refused() -> None:
    small = PdfRenderer(Limits(pdf_page_pixels=60_000_000, pdf_memory_bytes=128 << 20))
    field, message = refusal(small, pdf((b"0 0 3600 3600",)))
    assert (field, "more than 134217728 bytes, the limit (pdf_memory_bytes)" in message) == ("data.pdf", True), message
    assert len(rendered(small, SEVERAL)) == 3
    small.close()


def test_a_process_that_crashes_or_stops_is_replaced(renderer: PdfRenderer) -> None:
    assert len(rendered(renderer, SEVERAL)) == 3
    process = renderer._process.process_id
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    begun = time.monotonic()
    assert "4 s by the clock" in refusal(renderer, SEVERAL)[1]
    assert time.monotonic() - begun < 15
    pages = renderer.pages({"data": Pdf(content=SEVERAL, pages=None, dpi=240)})
    next(pages)
    process = renderer._process.process_id
    assert process is not None
    # as a file does that makes PDFium write where it must not
    os.kill(process, signal.SIGSEGV)
    with pytest.raises(InvalidRequest, match="PDFium crashed, or needed more than 1073741824 bytes"):
        list(pages)
    assert len(rendered(renderer, SEVERAL)) == 3


def test_a_page_of_the_most_pixels_is_rendered(renderer: PdfRenderer) -> None:
    ((_, image),) = rendered(renderer, pdf((b"0 0 1000 1000",)), dpi=72)
    assert image.size == (1000, 1000)


def test_pages_that_nobody_takes_do_not_become_those_of_others(renderer: PdfRenderer) -> None:
    pages = renderer.pages({"data": Pdf(content=SEVERAL, pages=None, dpi=240)})
    assert next(pages)[:2] == ("data", 1)
    pages.close()
    ((number, image),) = rendered(renderer, pdf((b"0 0 50 50",)), dpi=72)
    assert (number, image.size) == (1, (50, 50))


def test_threads_share_the_process(renderer: PdfRenderer) -> None:
    contents = [pdf((b"0 0 %d 100" % width,) * 3) for width in (60, 70, 80, 90)] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda content: rendered(renderer, content, dpi=72), contents))
    assert [[image.size[0] for _, image in pages] for pages in found] == [[width] * 3 for width in (60, 70, 80, 90)] * 4


def test_more_pdfs_than_the_limit_are_refused_for_now(renderer: PdfRenderer) -> None:
    with renderer.slot(path="data"):
        with renderer.slot(path="data"):
            with pytest.raises(Overloaded, match=r"limit 2, pdf_in_flight") as refused, renderer.slot(path="data"):
                pass
            assert (refused.value.status, refused.value.param) == (503, "data.pdf")
        with renderer.slot(path="data"):
            pass


@pytest.mark.parametrize(
    ("value", "numbers"),
    [("1", (1,)), ("2-4", (2, 3, 4)), ("3, 1-2", (3, 1, 2)), ("4,1-3", (4, 1, 2, 3)), ("1000000", (1_000_000,))],
)
def test_pages_are_numbers_and_ranges(value: str, numbers: tuple[int, ...]) -> None:
    assert page_numbers(value, LIMITS, path="data.pages") == numbers


@pytest.mark.parametrize(
    ("value", "says"),
    [
        *((value, "such as 1-3,7") for value in ("", "0", "-1", "2-1", "1-", "a", "1.5", "1,,2", "١", "1" * 50, "1\n")),
        ("1-5", "5 pages or more; the limit is 4 (pdf_pages)"),
        ("1-4,5", "5 pages or more; the limit is 4 (pdf_pages)"),
        ("1-99999999", "99999999 pages or more; the limit is 4 (pdf_pages)"),
        ("7,2-99999999", "99999999 pages or more; the limit is 4 (pdf_pages)"),
        ("1-2,2", "page 2 is there twice"),
    ],
)
def test_what_names_no_pages_is_refused(value: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        page_numbers(value, LIMITS, path="data.pages")
    assert (refused.value.param, says in refused.value.message) == ("data.pages", True), refused.value.message


@pytest.mark.parametrize(
    ("value", "dpi", "param", "says"),
    [
        ("https://example.org/a.pdf", None, "data.pdf", "an address is not fetched; send the PDF itself"),
        ("/etc/a.pdf", None, "data.pdf", "neither base64 nor a data URI"),
        ("", None, "data.pdf", "the PDF is empty"),
        ("A" * 200_000, None, "data.pdf", "about 150000 bytes; the limit is 100000 a PDF"),
        (base64.b64encode(b"\x89PNG\r\n").decode(), None, "data.pdf", "it is not a PDF"),
        (base64.b64encode(SEVERAL).decode(), 301, "data.dpi", "301 dots per inch; the limit is 300 (pdf_dpi)"),
    ],
)
def test_what_holds_no_pdf_is_refused(value: str, dpi: int | None, param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        pdf_of(value, None, dpi, LIMITS, path="data")
    assert (refused.value.param, says in refused.value.message) == (param, True), refused.value.message


def test_a_pdf_is_read_from_base64_and_from_a_data_uri() -> None:
    encoded = base64.b64encode(SEVERAL).decode()
    for value in (encoded, f"data:application/pdf;base64,{encoded}"):
        assert pdf_of(value, "1-2", 96, LIMITS, path="data") == Pdf(content=SEVERAL, pages=(1, 2), dpi=96)
    assert pdf_of(encoded, None, None, LIMITS, path="data") == Pdf(content=SEVERAL, pages=None, dpi=144)
    assert pdf_of(encoded, None, None, Limits(pdf_dpi=100), path="data").dpi == 100
    assert pdf_of(encoded, None, 300, LIMITS, path="data").dpi == 300


def test_a_pdf_begins_within_the_first_1024_bytes() -> None:
    late = base64.b64encode(b" " * 1019 + b"%PDF-1.7").decode()
    assert pdf_of(late, None, None, LIMITS, path="data").content.startswith(b" ")
    with pytest.raises(InvalidRequest, match="it does not begin with %PDF-"):
        pdf_of(base64.b64encode(b" " * 1020 + b"%PDF-1.7").decode(), None, None, LIMITS, path="data")


def test_an_address_is_fetched_later_and_only_from_a_host_that_is_allowed() -> None:
    address, hosts = "https://files.example.com/a.pdf", {"files.example.com"}
    assert pdf_of(address, "2", None, LIMITS, path="data", hosts=hosts) == Pdf(pages=(2,), dpi=144, address=address)
    with pytest.raises(InvalidRequest, match="is not allowed") as refused:
        pdf_of("https://other.example.com/a.pdf", None, None, LIMITS, path="data", hosts=hosts)
    assert refused.value.param == "data.pdf"
    # what is not an address is a file, whatever is allowed
    encoded = base64.b64encode(SEVERAL).decode()
    assert pdf_of(encoded, None, None, LIMITS, path="data", hosts=hosts).content == SEVERAL
