"""What small image files could make a decoder do, beyond their own pixels: counted in the file, before anything is decoded. Pure.

| a file | what it would cost |
|---|---|
| a JPEG of many scans | each goes over all pixels, and may be 20 bytes: 240 KB took more than a minute |
| a JPEG, PNG or GIF of many parts | Pillow reads each of them by itself, and keeps it: 20 MB of empty ones took 9 s and 650 MB |
| a TIFF of many tags | likewise, with a warning in the log for each |
| a TIFF of few pixels in a large tile | a whole tile is decompressed: 10 × 10 pixels took 740 MB |
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Final

# an ordinary progressive file has ten; libtiff has the same limit for JPEG within TIFF
MOST_SCANS: Final = 100
# the chunks of a PNG of 100 MB whose encoder writes 2 KiB at a time
MOST_PARTS: Final = 50_000
# an ordinary file has twenty
MOST_TAGS: Final = 1_000

# how files begin that Pillow takes for one of a format; a TIFF's number may be in either order
SIGNATURES: Final = {
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "WEBP": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "TIFF": re.compile(rb"(?:II|MM)(?:[*+]\0|\0[*+])"),
    "GIF": re.compile(rb"GIF8[79]a"),
}
# where a PNG's chunks begin
_CHUNKS = 8
# what has a length behind it: not a byte of data, filling, a restart
_MARKER = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd8]")
_END, _SCAN, _BETWEEN = 0xD9, 0xDA, 0
_IEND = b"IEND"
# of a GIF: the bytes before its colours, the flag that says whether there are any, and the kinds of blocks
_BEFORE_COLOURS, _COLOURS, _EXTENSION, _IMAGE, _TRAILER = 13, 0x80, 0x21, 0x2C, 0x3B
# of BigTIFF: the bytes of counts and of offsets, what comes before the offset of the first directory, and an entry
_CLASSIC, _BIG = ("H", "I", 4, "HHI4s"), ("Q", "Q", 8, "HHQ8s")
# width and height of an image, and those of its tiles
_SIDES = (256, 257, 322, 323)
# a TIFF's unsigned numbers of 2, 4 and 8 bytes
_NUMBERS = {3: "H", 4: "I", 16: "Q"}


def excess(content: bytes) -> str | None:
    """Return why a file would cost more than its pixels do; None for one that would not, and for what is no image."""
    if SIGNATURES["JPEG"].match(content):
        return _excess_of_jpeg(content)
    if SIGNATURES["PNG"].match(content):
        return f"a PNG of more than {MOST_PARTS} chunks, the limit" if _many(_chunks(content)) else None
    if SIGNATURES["GIF"].match(content):
        many = _many(_blocks(content))
        return f"a GIF of more than {MOST_PARTS} blocks before its first image, the limit" if many else None
    if SIGNATURES["TIFF"].match(content):
        return f"a TIFF of more than {MOST_TAGS} tags, the limit" if _tags(content) > MOST_TAGS else None
    return None


def _excess_of_jpeg(content: bytes) -> str | None:
    scans = 0
    for number, kind in enumerate(_segments(content), 1):
        if number > MOST_PARTS:
            return f"a JPEG of more than {MOST_PARTS} segments and bytes between them, the limit"
        scans += kind == _SCAN
        if scans > MOST_SCANS:
            return f"a JPEG of more than {MOST_SCANS} scans, the limit"
    return None


def _many(parts: Iterator[int]) -> bool:
    try:
        return next(islice(parts, MOST_PARTS, None), None) is not None
    except (IndexError, struct.error):
        # it ends within a part
        return False


def _tags(content: bytes) -> int:
    try:
        return _directory(content)[2]
    except struct.error:
        # Pillow refuses it
        return 0


def _segments(content: bytes) -> Iterator[int]:
    """Yield the kinds of the segments of a JPEG's first image, and of each byte between them that Pillow reads by itself: before its first scan."""
    position, scanned = 2, False
    while marker := _MARKER.search(content, position):
        if not scanned:
            yield from repeat(_BETWEEN, marker.start() - position)
        kind = content[marker.end() - 1]
        yield kind
        if kind == _END:
            return
        scanned |= kind == _SCAN
        position = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
    if not scanned:
        yield from repeat(_BETWEEN, len(content) - position)


def _chunks(content: bytes) -> Iterator[int]:
    """Yield where the chunks of a PNG are; raises struct.error where it is cut off."""
    position = _CHUNKS
    while True:
        length, kind = struct.unpack_from(">I4s", content, position)
        yield position
        if kind == _IEND:
            return
        position += 12 + length


def _blocks(content: bytes) -> Iterator[int]:
    """Yield where the blocks of a GIF before its first image are, with those within them; raises IndexError where it is cut off."""
    flags, position = content[10], _BEFORE_COLOURS
    if flags & _COLOURS:
        position += 3 << (flags & 7) + 1
    while (kind := content[position]) not in (_IMAGE, _TRAILER):
        yield position
        position += 1
        if kind == _EXTENSION:
            position += 1
            while length := content[position]:
                yield position
                position += 1 + length
            position += 1


def _directory(content: bytes) -> tuple[str, int, int]:
    """Return the structure of an entry of a TIFF's first directory, where the first one is, and how many there are.

    Raises:
        struct.error: The file is truncated.
    """
    order = "<" if content[:2] == b"II" else ">"
    count, offset, before, entry = _BIG if 43 in content[2:4] else _CLASSIC
    (position,) = struct.unpack_from(order + offset, content, before)
    (entries,) = struct.unpack_from(order + count, content, position)
    return order + entry, position + struct.calcsize(order + count), entries


def tiles(content: bytes) -> tuple[int, int, int] | None:
    """Return width and height of the tiles of a TIFF's first image, and the tiles that cover it; None where it has strips.

    Raises:
        ValueError: A side is not one positive number.
        struct.error: The file is truncated.
    """
    entry, position, entries = _directory(content)
    sides: dict[int, int] = {}
    for number in range(entries):
        tag, kind, _, value = struct.unpack_from(entry, content, position + number * struct.calcsize(entry))
        if tag in sides:
            # of two, libtiff reads the first, and Pillow the last
            raise ValueError("a side is there twice")
        if tag in _SIDES:
            if kind not in _NUMBERS:
                raise ValueError("a side is not a number")
            (sides[tag],) = struct.unpack_from(entry[0] + _NUMBERS[kind], value)
    if not sides.keys() & set(_SIDES[2:]):
        return None
    if len(sides) < len(_SIDES) or 0 in sides.values():
        raise ValueError("the sides of an image and of its tiles are positive numbers")
    width, height, wide, high = (sides[tag] for tag in _SIDES)
    return wide, high, -(-width // wide) * -(-height // high)
