"""What small image files could make a decoder do, beyond their own pixels: counted in the file, before anything is decoded. Pure.

| a file | what it would cost |
|---|---|
| a JPEG of many scans | each goes over all pixels, and may be 20 bytes: 240 KB took more than a minute |
| a TIFF of few pixels in a large tile | a whole tile is decompressed: 10 × 10 pixels took 740 MB |
"""

from __future__ import annotations

import re
import struct
from typing import Final

# an ordinary progressive file has ten; libtiff has the same limit for JPEG within TIFF
MOST_SCANS: Final = 100

# what has a length behind it: not a byte of data, filling, a restart
_MARKER = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]")
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
# of BigTIFF: the bytes of counts and of offsets, what comes before the offset of the first directory, and an entry
_CLASSIC, _BIG = ("H", "I", 4, "HHI4s"), ("Q", "Q", 8, "HHQ8s")
# width and height of an image, and those of its tiles
_SIDES = (256, 257, 322, 323)
# a TIFF's unsigned numbers of 2, 4 and 8 bytes
_NUMBERS = {3: "H", 4: "I", 16: "Q"}


def scans(content: bytes) -> int:
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


def tiles(content: bytes) -> tuple[int, int, int] | None:
    """Return width and height of the tiles of a TIFF's first image, and the tiles that cover it; None where it has strips.

    Raises:
        ValueError: A side is not a positive number.
        struct.error: The file is truncated.
    """
    order = "<" if content[:2] == b"II" else ">"
    # Pillow takes the number in either order
    count, offset, before, entry = _BIG if 43 in content[2:4] else _CLASSIC
    (position,) = struct.unpack_from(order + offset, content, before)
    (entries,) = struct.unpack_from(order + count, content, position)
    position += struct.calcsize(order + count)
    step, sides = struct.calcsize(order + entry), {}
    for start in range(position, min(position + entries * step, len(content) - step + 1), step):
        tag, kind, _, value = struct.unpack_from(order + entry, content, start)
        if tag in _SIDES and tag not in sides:
            number = order + _NUMBERS.get(kind, "")
            sides[tag] = struct.unpack_from(number, value)[0] if kind in _NUMBERS else 0
    if not sides.keys() & set(_SIDES[2:]):
        return None
    width, height, wide, high = (sides.get(tag, 0) for tag in _SIDES)
    if 0 in (width, height, wide, high):
        raise ValueError("the sides of an image and of its tiles are positive numbers")
    return wide, high, -(-width // wide) * -(-height // high)
