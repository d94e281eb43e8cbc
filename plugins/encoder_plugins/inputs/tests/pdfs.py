"""PDFs for tests, written by hand: an object by line, and a table of where they are."""

from __future__ import annotations

from collections.abc import Sequence

BLUE_BOX = b"0 0 1 rg 20 20 60 40 re f"
A_HUNDRED = (b"0 0 100 100",)


def pdf(
    boxes: Sequence[bytes] = A_HUNDRED,
    contents: Sequence[bytes] = (BLUE_BOX,),
    *,
    page: bytes = b"",
    catalogue: bytes = b"",
    trailer: bytes = b"",
    others: Sequence[bytes] = (),
) -> bytes:
    """Return a PDF.

    Args:
        boxes: The /MediaBox of each page.
        contents: The content of each page, or of all of them.
        page: Further entries of each page.
        catalogue: Further entries of the catalogue.
        trailer: Further entries of the trailer.
        others: Further objects, from number 3.
    """
    first = 3 + len(others)
    pages = [first + len(contents) + number for number in range(len(boxes))]
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R %s >>" % catalogue,
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(pages), b" ".join(b"%d 0 R" % each for each in pages)),
        *others,
        *(b"<< /Length %d >> stream\n%s\nendstream" % (len(content), content) for content in contents),
        *(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [%s] /Contents %d 0 R %s >>"
            % (box, first + min(number, len(contents) - 1), page)
            for number, box in enumerate(boxes)
        ),
    ]
    content = b"%PDF-1.7\n"
    offsets = []
    for number, each in enumerate(objects, 1):
        offsets.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return (
        content
        + b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF"
        % (
            len(objects) + 1,
            table,
            len(objects) + 1,
            trailer,
            len(content),
        )
    )


def text(line: str) -> bytes:
    """Return the content of a page with a line of text, in a font that every reader has."""
    return b"BT /F 12 Tf 10 50 Td (%s) Tj ET " % line.encode() + BLUE_BOX


FONT = b"/Resources << /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
SLOW = b"0 0 100 100 re 1 1 90 90 re f* " * 400_000
# a stated password that nobody has: any 32 bytes
ENCRYPTED = b"/Encrypt << /Filter /Standard /V 1 /R 2 /Length 40 /P -4 /O <%s> /U <%s> >> /ID [<00><00>]" % (
    b"11" * 32,
    b"22" * 32,
)
