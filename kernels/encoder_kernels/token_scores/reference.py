"""The token scorer in plain PyTorch: what CPUs run, and what the kernels are tested against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

if TYPE_CHECKING:
    from encoder_kernels.token_scores import Layers

# pairs that are computed at once: 200 MB of inner rows in float32, for a head of width 768; products of fewer rows are slower on a CPU
TILE = 16_384

Part = tuple[slice, slice]


def scores(
    factors: tuple[torch.Tensor, ...],
    layers: Layers,
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    logits: torch.Tensor,
    tile: int | None = None,
) -> None:
    """Write the logits of all pairs; arguments as in ``token_scores``, in its order.

    Every word of a text meets the same labels: what words and labels add is broadcast, and no row is copied for each of its pairs.
    """
    word, label, word_factor, label_factor = factors
    word_offsets, label_offsets, rows = places
    if rows is not None:
        label, label_factor = label[rows], label_factor[rows]
    begin = 0
    for parts in _tiles(word_offsets.tolist(), label_offsets.tolist(), tile or TILE):
        sizes = [_size(part) for part in parts]
        product = torch.empty((sum(sizes), word_factor.shape[1]), dtype=word.dtype, device=word.device)
        for (words, labels), own in zip(parts, torch.split(product, sizes), strict=True):
            torch.mul(
                word_factor[words, None], label_factor[labels], out=own.view(words.stop - words.start, -1, own.shape[1])
            )
        inner = linear(product, layers.product)
        for (words, labels), own in zip(parts, torch.split(inner, sizes), strict=True):
            pairs = own.view(words.stop - words.start, -1, own.shape[1])
            pairs += word[words, None]
            pairs += label[labels]
        end = begin + len(inner)
        logits[begin:end] = linear(inner.relu_(), layers.out, layers.out_bias)
        begin = end


def _size(part: Part) -> int:
    words, labels = part
    return int((words.stop - words.start) * (labels.stop - labels.start))


def _tiles(word_offsets: Sequence[int], label_offsets: Sequence[int], most: int) -> Iterator[list[Part]]:
    """Yield the words and labels of parts of texts that have so many pairs together at most, or one word's."""
    parts: list[Part] = []
    left = most
    for text in range(len(word_offsets) - 1):
        labels = slice(label_offsets[text], label_offsets[text + 1])
        count, first = labels.stop - labels.start, word_offsets[text]
        while count and first < word_offsets[text + 1]:
            if parts and left < count:
                yield parts
                parts, left = [], most
            last = min(first + max(1, left // count), word_offsets[text + 1])
            parts.append((slice(first, last), labels))
            left -= (last - first) * count
            first = last
    if parts:
        yield parts
