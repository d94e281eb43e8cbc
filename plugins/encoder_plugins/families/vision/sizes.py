"""The sizes that images are scaled to before a vision encoder, and the tokens that they then have. Pure, standard library only.

As ``smart_resize`` of transformers' Qwen2VLImageProcessor: both sides become multiples of a token's side, the number of
pixels stays within bounds, and the ratio is kept as far as that allows. LFM2-VL scales a small image like that, and cuts a
large one into tiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

# of the sides of what Qwen's image processors take
_MOST_RATIO = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelBounds:
    """The sizes of scaled images.

    Attributes:
        side: Pixels along each side of the square that one token stands for.
        least: Pixels of an image at least.
        most: Pixels of an image at most; an image whose one side would be below ``side`` may have more.
    """

    side: int
    least: int
    most: int

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest image of an ordinary ratio."""
        return self.most // self.side**2

    def scaled(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height that an image of ``width`` and ``height``, both at least 1, is scaled to."""
        side = self.side
        wide, high = self._rounded(width), self._rounded(height)
        if wide * high > self.most:
            factor = math.sqrt(width * height / self.most)
            wide = max(side, math.floor(width / factor / side) * side)
            high = max(side, math.floor(height / factor / side) * side)
        elif wide * high < self.least:
            factor = math.sqrt(self.least / (width * height))
            wide = math.ceil(width * factor / side) * side
            high = math.ceil(height * factor / side) * side
        return wide, high

    def _rounded(self, pixels: int) -> int:
        return round(pixels / self.side) * self.side

    def ahead(self, width: int, height: int) -> tuple[int, int]:
        """Return the size that an image has when it is handed to the model's image processor."""
        size = self.scaled(width, height)
        # one that is very narrow would be scaled again, or be refused for a ratio that it has only now: it is left to the processor
        taken = self.scaled(*size) == size and max(size) <= _MOST_RATIO * min(size)
        return size if taken else (width, height)

    def fits(self, width: int, height: int) -> bool:
        """Return whether the encoder takes an image of this size: it takes any."""
        del width, height
        return True

    def tokens(self, width: int, height: int) -> int:
        """Return the tokens of an image of ``width`` and ``height`` before it is scaled."""
        wide, high = self.scaled(width, height)
        return wide * high // self.side**2


class ViewBounds(PixelBounds):
    """The sizes of LFM2-VL's views: a side that would round to nothing is one token long before pixels are counted."""

    __slots__ = ()

    def _rounded(self, pixels: int) -> int:
        return max(self.side, round(pixels / self.side) * self.side)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Images as LFM2-VL has them: a small one in one view, a large one as tiles of one size and a view of all of it.

    A label stands before each tile and before the view of all, and a mark before and behind the image.

    Attributes:
        view: The sizes of an image in one view.
        tile: Pixels along each side of a tile.
        fewest: Tiles of a large image at least.
        most_tiles: Tiles of a large image at most; 1 where images are never cut.
        tolerance: How many times the pixels of ``view`` an image may have that is still scaled to one.
        patch: Pixels along each side of the encoder's patches.
    """

    view: ViewBounds
    tile: int
    fewest: int
    most_tiles: int
    tolerance: float
    patch: int

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest image of an ordinary ratio, with labels and marks."""
        tiles = self.most_tiles * (1 + self._tile_tokens) + 1 if self.most_tiles > 1 else 0
        return 2 + tiles + self.view.most_tokens

    @property
    def _tile_tokens(self) -> int:
        return (self.tile // self.view.side) ** 2

    def ahead(self, width: int, height: int) -> tuple[int, int]:
        """Return the size itself: tiles and the view of all are made from the same pixels."""
        return width, height

    def fits(self, width: int, height: int) -> bool:
        """Return whether the view of all of an image has no more patches than the encoder takes: that of a narrow one has."""
        return self.view.tokens(width, height) <= max(self.view.most_tokens, self._tile_tokens)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the columns and rows of the tiles of an image; one of each where it is not cut."""
        side = self.view.side
        wide, high = (max(self.patch, round(pixels / side) * side) for pixels in (width, height))
        if self.most_tiles == 1 or wide * high <= self.view.most * self.tolerance:
            return 1, 1
        grids = {
            (columns, rows)
            for columns in range(1, self.most_tiles + 1)
            for rows in range(1, self.most_tiles + 1)
            if self.fewest <= columns * rows <= self.most_tiles
        }
        best, least = (1, 1), math.inf
        # of two grids as close, the later one may win; two of as many tiles are never both the closest
        for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
            difference = abs(width / height - columns / rows)
            enough = width * height > 0.5 * self.tile**2 * columns * rows
            if difference < least or (difference == least and enough):
                best, least = (columns, rows), difference
        return best

    def tokens(self, width: int, height: int) -> int:
        """Return the tokens of an image of ``width`` and ``height``, with labels and marks."""
        columns, rows = self.grid(width, height)
        tiles = columns * rows
        return 2 + self.view.tokens(width, height) + (tiles * (1 + self._tile_tokens) + 1 if tiles > 1 else 0)


Sizes: TypeAlias = "PixelBounds | Tiles"


def from_dict(values: Mapping[str, Any]) -> Sizes:
    """Return what ``dataclasses.asdict`` made of one of the two; raises TypeError for anything else."""
    if "view" in values:
        return Tiles(**{**values, "view": ViewBounds(**values["view"])})
    return PixelBounds(**values)
