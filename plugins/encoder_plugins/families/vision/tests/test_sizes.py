"""The tiles of an image are those of LFM2-VL's own image processor, and sizes those of Qwen's."""

from __future__ import annotations

import random

import pytest
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from encoder_plugins.families.vision.sizes import PixelBounds, Tiles, ViewBounds, from_dict
from encoder_plugins.inputs.image import MOST_RATIO

# as LFM2-VL-450M has them, and small ones
PUBLISHED = Tiles(
    view=ViewBounds(side=32, least=64 * 1024, most=256 * 1024),
    tile=512,
    fewest=2,
    most_tiles=10,
    tolerance=2.0,
    patch=16,
)
SMALL = Tiles(
    view=ViewBounds(side=32, least=16 * 1024, most=64 * 1024), tile=256, fewest=2, most_tiles=6, tolerance=2.0, patch=16
)


@pytest.mark.parametrize("tiles", [PUBLISHED, SMALL], ids=["published", "small"])
def test_tiles_and_tokens_are_those_of_transformers(tiles: Tiles) -> None:
    fewest, most = tiles.view.least // 1024, tiles.view.most // 1024
    processor = Lfm2VlImageProcessor()
    chosen = random.Random(0)
    sizes = [(chosen.randint(1, 5000), chosen.randint(1, 5000)) for _ in range(300)]
    # sides that round to nothing, and those at which tiles begin
    sizes += [(1, 1), (700, 12), (12, 700), (2400, 12), (724, 724), (725, 725), (362, 362), (363, 363), (6000, 60)]
    found = []
    for width, height in sizes:
        if max(width, height) > MOST_RATIO * min(width, height) or not tiles.fits(width, height):
            continue
        wide, high = processor.smart_resize(height, width, 2, fewest, most, 16)
        grid = (1, 1)
        if processor._is_image_too_large(height, width, most, 16, 2, tiles.tolerance):
            grid = processor._get_grid_layout(height, width, tiles.fewest, tiles.most_tiles, tiles.tile)[:2]
        assert (tiles.grid(width, height), tiles.view.scaled(width, height)) == (grid, (wide, high))
        cut = grid[0] * grid[1] * (1 + (tiles.tile // 32) ** 2) + 1 if grid != (1, 1) else 0
        assert tiles.tokens(width, height) == 2 + wide * high // 1024 + cut
        found.append(tiles.tokens(width, height))
    assert len(found) > 250
    assert tiles.most_tokens - 100 < max(found) <= tiles.most_tokens


@pytest.mark.parametrize(("least", "most"), [(65_536, 1_003_520), (3_136, 16_777_216), (65_536, 262_144)])
def test_an_image_of_any_ratio_that_is_taken_has_the_size_of_qwens_processor(least: int, most: int) -> None:
    bounds, chosen = PixelBounds(side=32, least=least, most=most), random.Random(0)
    # both sides are rounded down: the ratio grows beyond what the processor takes, and it must get the image as it is
    sizes = [(150, 30_000), (30_000, 150), (95, 19_000), (1, 200), (200, 1)]
    narrow = [(chosen.randint(1, 300), chosen.randint(150, MOST_RATIO)) for _ in range(300)]
    sizes += [(short, short * ratio) for short, ratio in narrow] + [(short * ratio, short) for short, ratio in narrow]
    for width, height in sizes:
        wide, high = bounds.ahead(width, height)
        ahead = smart_resize(high, wide, 32, least, most)
        assert ahead[::-1] == smart_resize(height, width, 32, least, most)[::-1] == bounds.scaled(width, height)


def test_an_image_without_a_view_does_not_fit() -> None:
    assert PUBLISHED.fits(6000, 60)
    assert not SMALL.fits(6000, 60)


def test_tiles_are_written_and_read() -> None:
    from dataclasses import asdict

    assert from_dict(asdict(SMALL)) == SMALL
