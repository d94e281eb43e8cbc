# /// script
# requires-python = ">=3.11"
# dependencies = ["reportlab>=4.4"]
# ///
"""Make the two PDFs of this example: `sizes.pdf`, with charts and tables, and `operation.pdf`, with diagrams.

The same bytes come out each time. The fonts are in the files, so that pages look the same on every machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import reportlab
from reportlab.lib.pagesizes import A5
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

WIDTH, HEIGHT = A5
MARGIN = 40
BLUE, GREY = (0.16, 0.36, 0.62), (0.88, 0.9, 0.93)


class Document:
    """A PDF that is written page by page, from the top down."""

    def __init__(self, path: Path, title: str) -> None:
        self._canvas = Canvas(str(path), pagesize=A5, invariant=1, pageCompression=1)
        self._canvas.setTitle(title)
        self._title = title
        self._y = 0.0

    def page(self, heading: str, *paragraphs: str) -> None:
        """Begin a page with a heading and text below it."""
        if self._y:
            self._canvas.showPage()
        self._y = HEIGHT - MARGIN
        self._line(self._title, "Text", 8)
        self._y -= 14
        self._line(heading, "Bold", 15)
        for paragraph in paragraphs:
            self._y -= 8
            for line in self._wrapped(paragraph, WIDTH - 2 * MARGIN):
                self._line(line, "Text", 9.5)

    def bars(self, values: Sequence[tuple[str, float]], unit: str) -> None:
        """Draw a bar for each value, with its number behind it."""
        self._y -= 12
        most = max(value for _, value in values)
        for name, value in values:
            self._y -= 26
            length = 170 * value / most
            self._canvas.setFillColorRGB(*BLUE)
            self._canvas.rect(MARGIN + 90, self._y, length, 16, stroke=0, fill=1)
            self._text(MARGIN, self._y + 5, name, "Text", 9)
            self._text(MARGIN + 95 + length, self._y + 5, f"{value:g} {unit}", "Bold", 9)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Draw a table, whose first row is its head."""
        self._y -= 12
        step = (WIDTH - 2 * MARGIN) / len(rows[0])
        for number, row in enumerate(rows):
            self._y -= 22
            self._canvas.setFillColorRGB(*(GREY if number == 0 else (1, 1, 1)))
            self._canvas.rect(MARGIN, self._y, WIDTH - 2 * MARGIN, 22, fill=1)
            for column, cell in enumerate(row):
                self._text(MARGIN + 6 + column * step, self._y + 8, cell, "Bold" if number == 0 else "Text", 9)

    def boxes(self, names: Sequence[str]) -> None:
        """Draw boxes below each other, with an arrow from each to the next."""
        self._y -= 20
        for number, name in enumerate(names):
            self._y -= 34
            self._canvas.setFillColorRGB(*GREY)
            self._canvas.roundRect(MARGIN + 60, self._y, WIDTH - 2 * MARGIN - 120, 34, 6, fill=1)
            self._text(WIDTH / 2 - pdfmetrics.stringWidth(name, "Bold", 10) / 2, self._y + 13, name, "Bold", 10)
            if number < len(names) - 1:
                self._canvas.line(WIDTH / 2, self._y, WIDTH / 2, self._y - 18)
                self._canvas.line(WIDTH / 2, self._y - 18, WIDTH / 2 - 4, self._y - 11)
                self._canvas.line(WIDTH / 2, self._y - 18, WIDTH / 2 + 4, self._y - 11)
                self._y -= 18

    def save(self) -> None:
        """Write the file."""
        self._canvas.save()

    def _text(self, x: float, y: float, text: str, font: str, size: float) -> None:
        self._canvas.setFillColorRGB(0, 0, 0)
        self._canvas.setFont(font, size)
        self._canvas.drawString(x, y, text)

    def _line(self, text: str, font: str, size: float) -> None:
        self._y -= size * 1.35
        self._text(MARGIN, self._y, text, font, size)

    @staticmethod
    def _wrapped(paragraph: str, width: float) -> list[str]:
        lines = [""]
        for word in paragraph.split():
            longer = f"{lines[-1]} {word}".strip()
            if pdfmetrics.stringWidth(longer, "Text", 9.5) <= width:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines


def sizes(path: Path) -> None:
    """Write a PDF about the sizes of rows."""
    found = Document(path, "Sizes of rows and requests")
    found.page(
        "Bytes of an A4 page",
        "A visual retriever has one row of 128 numbers for each token of a page. The chart shows the bytes of the rows of one A4 page of collfm2, rendered "
        "at 150 dots per inch, by the type of the numbers.",
    )
    found.bars((("float32", 922), ("float16", 461), ("int8", 230), ("binary", 29)), "KB")
    found.page(
        "Rows of a page by model",
        "More rows keep more detail, and cost more memory in the vector store. A page of A4 has about this many rows.",
    )
    found.bars((("colqwen3", 973), ("collfm2", 1800), ("nemotron 4b", 790)), "rows")
    found.page(
        "Limits of one request",
        "A request that exceeds a limit is answered 400, and the error names the field. Each limit can be set when a server is started.",
    )
    found.table(
        (
            ("limit", "colqwen3", "collfm2"),
            ("images", "32", "16"),
            ("pdf_pages", "32", "16"),
            ("pdf_dpi", "300", "300"),
            ("in_flight", "64", "32"),
        )
    )
    found.page(
        "Fewer rows",
        "With pool_factor 2 the server merges rows that are alike, and returns about half as many. Each is the mean of those that it stands for. The chart "
        "shows the rows of a page of 980 tokens by the factor.",
    )
    found.bars((("factor 1", 980), ("factor 2", 490), ("factor 4", 245)), "rows")
    found.save()


def operation(path: Path) -> None:
    """Write a PDF about how models are served."""
    found = Document(path, "How a model is served")
    found.page(
        "From a checkpoint to traffic",
        "The operator prepares each revision of a model, starts it, and compares its answers with those of the original library. Only a revision that "
        "matches the reference within tolerance serves traffic.",
    )
    found.boxes(("Checkpoint", "Prep Job", "Engine pods", "Parity Job", "Service"))
    found.page(
        "The path of a PDF",
        "A PDF in a request is rendered in a process that has limits of memory and time. Its pages are scaled to the pixels that the model sees, and "
        "reach the engine as images.",
    )
    found.boxes(("PDF in the request", "Rendering process", "Page images", "Engine", "Rows"))
    found.page(
        "Status codes",
        "A client decides by the status code whether to send a request again. Only 429 and 503 are worth another try, after the seconds of Retry-After.",
    )
    found.table(
        (
            ("status", "meaning", "send again"),
            ("400", "wrong field", "no"),
            ("408", "body came too slowly", "no"),
            ("413", "body too large", "no"),
            ("503", "server is full", "yes"),
        )
    )
    found.page(
        "MaxSim",
        "For each row of the question, the best product with a row of the page is taken. The score of the page is their sum. A vector store with "
        "multi-vector support computes the same from the rows that the server returned.",
    )
    found.boxes(("Rows of the question", "Best row of the page for each", "Sum"))
    found.save()


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent)
    folder = parser.parse_args().folder
    fonts = Path(reportlab.__file__).parent / "fonts"
    for name, file in (("Text", "Vera.ttf"), ("Bold", "VeraBd.ttf")):
        pdfmetrics.registerFont(TTFont(name, str(fonts / file)))
    sizes(folder / "sizes.pdf")
    operation(folder / "operation.pdf")


if __name__ == "__main__":
    main()
