"""What every side of a visual comparison gets: the same page images and queries, from a seed. Pure.

A page is A4 at 144 dots per inch, as a scanner gives it: lines of English, a picture of blocks, noise of paper, as JPEG.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from encoder_bench import workload

WIDTH, HEIGHT = 1191, 1684
QUERY_WORDS = 12
_MARGIN, _LINE = 90, 26


def page(seed: int) -> bytes:
    """Return the file of one page."""
    chance = random.Random(seed)
    rows = np.random.default_rng(seed).integers(236, 255, (HEIGHT, WIDTH, 1), dtype=np.uint8)
    image = Image.fromarray(np.repeat(rows, 3, axis=2))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(20)
    known = workload.words()
    top = chance.randrange(_MARGIN, HEIGHT - 500)
    for place in range(_MARGIN, HEIGHT - _MARGIN, _LINE):
        if top - _LINE < place < top + 400:
            continue
        begin = chance.randrange(len(known) - 20)
        draw.text((_MARGIN, place), " ".join(known[begin : begin + 16])[:95], fill=(20, 20, 30), font=font)
    for column in range(8):
        height = chance.randrange(40, 390)
        colour = tuple(chance.randrange(40, 220) for _ in range(3))
        left = _MARGIN + column * 125
        draw.rectangle((left, top + 395 - height, left + 90, top + 395), fill=colour)
    written = io.BytesIO()
    image.save(written, "JPEG", quality=85)
    return written.getvalue()


def pages(count: int, processes: int) -> list[bytes]:
    """Return so many different pages, drawn in so many processes."""
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(page, range(count), chunksize=8))


def queries(count: int) -> Sequence[str]:
    """Return so many different queries."""
    return [f"{text}?" for text in workload.texts(count, QUERY_WORDS)]
