"""What is counted in image files before they are decoded."""

from __future__ import annotations

import struct

import pytest

from encoder_plugins.inputs import image_work

LABEL = b"\xff\xfe\0\4ab"
SCAN = b"\xff\xda\0\2"
JPEG = b"\xff\xd8\xff\xe0\0\2"
COLOURS = b"GIF89a\1\0\1\0\x82\0\0" + b"!" * 24
NO_COLOURS = b"GIF89a\1\0\1\0\2\0\0"


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + b"sums"


PNG = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"IEND" * 3)

PARTS = {
    "a jpeg to its end": (JPEG + SCAN + b"data\xff\xd9", 3, "segments and bytes between them"),
    "a jpeg with a second image": (JPEG + SCAN + b"\xff\xd9" + JPEG * 5, 3, "segments and bytes between them"),
    "bytes between segments": (JPEG + b"\xff\xff\0" + LABEL + b"\xff\xd9" + SCAN, 6, "segments and bytes between them"),
    "bytes of a scan": (
        JPEG + SCAN + b"a\xff\0\xff\xd3\xff\1\xff\xff" + SCAN + b"bc",
        3,
        "segments and bytes between them",
    ),
    "a segment behind a scan": (JPEG + SCAN + b"abc" + LABEL * 2 + b"d\xff\xd9", 5, "segments and bytes between them"),
    "a jpeg without a scan": (JPEG + b"abc", 4, "segments and bytes between them"),
    "what a segment holds": (JPEG + b"\xff\xe1\0\x0e" + SCAN * 3 + SCAN, 3, "segments and bytes between them"),
    "chunks": (PNG + chunk(b"IDAT", b"IEND") * 2 + chunk(b"IEND") + chunk(b"IDAT") * 3, 4, "chunks"),
    "chunks without an end": (PNG + chunk(b"IDAT") * 2, None, "chunks"),
    "blocks behind colours": (COLOURS + b"!\xfe\1,\2;,\0!\xf9\4abcd\0,!!!!", 5, "blocks before its first image"),
    "blocks without colours": (NO_COLOURS + b"!\xfe\1,\0;!!!!", 2, "blocks before its first image"),
    "bytes between blocks": (NO_COLOURS + b"ab\0" + b"!\1\0" + b"," * 9, 4, "blocks before its first image"),
    "blocks without an end": (NO_COLOURS + b"!\xfe\1a", None, "blocks before its first image"),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_parts_of_a_file_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, count, what = PARTS[name]
    monkeypatch.setattr(image_work, "MOST_PARTS", count or 100)
    assert image_work.excess(content) is None
    if count is not None:
        monkeypatch.setattr(image_work, "MOST_PARTS", count - 1)
        assert f" of more than {count - 1} {what}, the limit" in str(image_work.excess(content))


def test_the_scans_of_a_jpeg_are_counted() -> None:
    # neither what a segment holds nor what is behind the end
    around = JPEG + b"\xff\xe1\0\6" + SCAN, b"\xff\xd9" + SCAN
    assert image_work.excess((SCAN * 100).join(around)) is None
    assert image_work.excess((SCAN * 101).join(around)) == "a JPEG of more than 100 scans, the limit"


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_tags_of_a_tiff_are_counted(order: str) -> None:
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    assert image_work.excess(head + struct.pack(order + "H", 1000)) is None
    assert image_work.excess(head + struct.pack(order + "H", 1001)) == "a TIFF of more than 1000 tags, the limit"
    assert image_work.excess(head) is None
    assert image_work.excess(b"none of them" * 20) is None


def tiff(
    sides: list[tuple[int, int]], order: str = "<", *, big: bool = False, kind: int = 4, number: str = "I"
) -> bytes:
    """The beginning of a TIFF whose directory has these tags."""
    entries = b"".join(
        struct.pack(order + ("HHQ" if big else "HHI"), tag, kind, 1)
        + struct.pack(order + number, side).ljust(8 if big else 4, b"\0")
        for tag, side in sides
    )
    count = len(sides)
    header = struct.pack(order + "HHHQQ", 43, 8, 0, 16, count) if big else struct.pack(order + "HIH", 42, 8, count)
    return (b"II" if order == "<" else b"MM") + header + entries


SIDES = [(256, 100), (257, 50), (322, 32), (323, 16)]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("big", "kind", "number"), [(False, 3, "H"), (False, 4, "I"), (True, 4, "I"), (True, 16, "Q")])
def test_tiles_are_those_of_the_first_directory_of_a_tiff(order: str, *, big: bool, kind: int, number: str) -> None:
    found = image_work.tiles(tiff(SIDES, order, big=big, kind=kind, number=number))
    assert found == (32, 16, 16)
    assert image_work.tiles(tiff(SIDES[:2], order, big=big, kind=kind, number=number)) is None


@pytest.mark.parametrize(
    "content",
    [
        tiff(SIDES[:3]),
        tiff(SIDES[1:]),
        tiff([*SIDES, (322, 16)]),
        tiff([*SIDES[:3], (323, 0)]),
        tiff(SIDES, kind=8),
        tiff(SIDES)[:-1],
        tiff(SIDES)[:9],
    ],
    ids=["no height", "no width of the image", "twice", "zero", "a negative number", "truncated", "without entries"],
)
def test_sides_that_are_no_positive_numbers_are_refused(content: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        image_work.tiles(content)
