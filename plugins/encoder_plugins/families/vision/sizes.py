"""The size that an image is scaled to before Qwen's vision encoder, and the tokens that it then has. Pure, standard library only.

As ``smart_resize`` of transformers' Qwen2VLImageProcessor: both sides become multiples of a token's side, the number of
pixels stays within bounds, and the ratio is kept as far as that allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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
        wide, high = round(width / side) * side, round(height / side) * side
        if wide * high > self.most:
            factor = math.sqrt(width * height / self.most)
            wide = max(side, math.floor(width / factor / side) * side)
            high = max(side, math.floor(height / factor / side) * side)
        elif wide * high < self.least:
            factor = math.sqrt(self.least / (width * height))
            wide = math.ceil(width * factor / side) * side
            high = math.ceil(height * factor / side) * side
        return wide, high

    def tokens(self, width: int, height: int) -> int:
        """Return the tokens of an image of ``width`` and ``height`` before it is scaled."""
        wide, high = self.scaled(width, height)
        return wide * high // self.side**2
