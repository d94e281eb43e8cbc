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
from itertools import islice
from typing import Final

# an ordinary progressive file has ten; libtiff has the same limit for JPEG within TIFF
MOST_SCANS: Final = 100
# the chunks of a PNG of 100 MB whose encoder writes 2 KiB at a time
MOST_PARTS: Final = 50_000
# an ordinary file has twenty
MOST_TAGS: Final = 1_000

# what has a length behind it: not a byte of data, filling, a restart
_MARKER = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]")
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
_JPEG, _PNG, _GIF, _TIFF = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", (b"II", b"MM")
_IEND = b"IEND"
_COLOURS, _EXTENSION, _IMAGE, _TRAILER = 0x80, 0x21, 0x2C, 0x3B
# of BigTIFF: the bytes of counts and of offsets, what comes before the offset of the first directory, and an entry
_CLASSIC, _BIG = ("H", "I", 4, "HHI4s"), ("Q", "Q", 8, "HHQ8s")
# width and height of an image, and those of its tiles
_SIDES = (256, 257, 322, 323)
# a TIFF's unsigned numbers of 2, 4 and 8 bytes
_NUMBERS = {3: "H", 4: "I", 16: "Q"}


def excess(content: bytes) -> str | None:
    """Return why a file would cost more than its pixels do; None for one that would not, and for what is no image."""
    if content.startswith(_JPEG):
        if _many(_segments(content)):
            return f"a JPEG of more than {MOST_PARTS} segments and bytes between them, the limit"
        return f"a JPEG of more than {MOST_SCANS} scans, the limit" if _scans(content) > MOST_SCANS else None
    if content.startswith(_PNG):
        return f"a PNG of more than {MOST_PARTS} chunks, the limit" if _many(_chunks(content)) else None
    if content.startswith(_GIF):
        many = _many(_blocks(content))
        return f"a GIF of more than {MOST_PARTS} blocks before its first image, the limit" if many else None
    if content.startswith(_TIFF):
        return f"a TIFF of more than {MOST_TAGS} tags, the limit" if _tags(content) > MOST_TAGS else None
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
        return 0


def _scans(content: bytes) -> int:
    """Return the scans of the first image of a JPEG file, and one more than the most where there are more."""
    found, position = 0, 0
    while found <= MOST_SCANS and (marker := _MARKER.search(content, position)):
        kind, position = content[marker.end() - 1], marker.end()
        if kind == _END:
            break
        if kind != _START:
            position += int.from_bytes(content[position : position + 2])
        found += kind == _SCAN
    return found


def _segments(content: bytes) -> Iterator[int]:
    """Yield where the segments of a JPEG's first image are, and the bytes between them before its first scan, which Pillow reads one by one."""
    position, scanned = 2, False
    while marker := _MARKER.search(content, position):
        yield from () if scanned else range(position, marker.start())
        yield marker.start()
        kind = content[marker.end() - 1]
        if kind == _END:
            return
        scanned |= kind == _SCAN
        position = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
    yield from () if scanned else range(position, len(content))


def _chunks(content: bytes) -> Iterator[int]:
    """Yield where the chunks of a PNG are; raises struct.error where it is cut off."""
    position = len(_PNG)
    while True:
        length, kind = struct.unpack_from(">I4s", content, position)
        yield position
        if kind == _IEND:
            return
        position += 12 + length


def _blocks(content: bytes) -> Iterator[int]:
    """Yield where the blocks of a GIF before its first image are, with those within them; raises IndexError where it is cut off."""
    colours = content[10]
    position = 13 + (3 << (colours & 7) + 1 if colours & _COLOURS else 0)
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
    # Pillow takes the number in either order
    count, offset, before, entry = _BIG if 43 in content[2:4] else _CLASSIC
    (position,) = struct.unpack_from(order + offset, content, before)
    (entries,) = struct.unpack_from(order + count, content, position)
    return order + entry, position + struct.calcsize(order + count), entries


def tiles(content: bytes) -> tuple[int, int, int] | None:
    """Return width and height of the tiles of a TIFF's first image, and the tiles that cover it; None where it has strips.

    Raises:
        ValueError: A side is not a positive number.
        struct.error: The file is truncated.
    """
    entry, position, entries = _directory(content)
    step, sides = struct.calcsize(entry), {}
    for start in range(position, min(position + entries * step, len(content) - step + 1), step):
        tag, kind, _, value = struct.unpack_from(entry, content, start)
        if tag in _SIDES and tag not in sides:
            number = entry[0] + _NUMBERS.get(kind, "")
            sides[tag] = struct.unpack_from(number, value)[0] if kind in _NUMBERS else 0
    if not sides.keys() & set(_SIDES[2:]):
        return None
    width, height, wide, high = (sides.get(tag, 0) for tag in _SIDES)
    if 0 in (width, height, wide, high):
        raise ValueError("the sides of an image and of its tiles are positive numbers")
    return wide, high, -(-width // wide) * -(-height // high)
