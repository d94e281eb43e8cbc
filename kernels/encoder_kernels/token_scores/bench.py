# ruff: noqa: B023 - every closure is called before the next round
"""The token scorer against its arithmetic: ``python -m encoder_kernels.token_scores.bench [--tiles]``."""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import linear

from encoder_kernels import measure
from encoder_kernels.token_scores import Layers, kernel, token_scores

SIZE = 768
SHAPES = ((32, 64, 5), (32, 64, 20), (16, 256, 20), (16, 512, 20), (16, 512, 100))


class _Batch:
    """So many equal texts.

    Attributes:
        pairs: Of all texts.
        rows: `[pairs]` each: the word and the label of each pair.
    """

    def __init__(self, texts: int, words: int, labels: int) -> None:
        def some(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        self.word, self.label = some(texts * words, 4 * SIZE), some(texts * labels, 4 * SIZE)
        self.word_factor, self.label_factor = some(texts * words, SIZE), some(texts * labels, SIZE)
        wide = some(4 * SIZE, 3 * SIZE) / SIZE**0.5
        self.layers = Layers(wide[:, 2 * SIZE :], some(3, 4 * SIZE) / SIZE, some(3))
        texts_at = torch.arange(texts + 1, device="cuda", dtype=torch.int32)
        self.offsets = (texts_at * words, texts_at * labels, texts_at * (words * labels))
        self.pairs = texts * words * labels
        numbers = torch.arange(self.pairs, device="cuda", dtype=torch.int32)
        self.rows = (numbers // labels, numbers // (words * labels) * labels + numbers % labels)

    def ours(self, tile: int | None = None) -> torch.Tensor:
        """Return the logits by the kernels."""
        factors = (self.word, self.label, self.word_factor, self.label_factor)
        return token_scores(*factors, self.layers, *self.offsets, pairs=self.pairs, tile=tile)

    def by_rows(self) -> torch.Tensor:
        """Return the same by torch's operations alone, 16 384 pairs at once, from rows that are known."""
        logits = torch.empty(self.pairs, 3, device="cuda")
        for begin in range(0, self.pairs, 16_384):
            tile = slice(begin, begin + 16_384)
            word, label = (rows[tile] for rows in self.rows)
            inner = linear(self.word_factor[word] * self.label_factor[label], self.layers.product)
            inner += self.word[word]
            inner += self.label[label]
            logits[tile] = linear(inner.relu_(), self.layers.out, self.layers.out_bias)
        return logits


def report() -> str:
    """Return the table."""
    rows: list[measure.Row] = []
    for texts, words, labels in SHAPES:
        batch = _Batch(texts, words, labels)
        ours = measure.microseconds(batch.ours)
        rows.append(
            [
                f"{texts} × {words} words × {labels} labels, {SIZE}",
                ours,
                measure.microseconds(batch.by_rows),
                measure.attempt(measure.compiled(batch.by_rows)),
                1000 * ours / batch.pairs,
                2 * batch.pairs * 4 * SIZE * SIZE / ours / 1e6,
            ]
        )
    columns = ["texts (bf16)", "ours µs", "torch µs", "torch.compile of it µs", "ours, ns a pair", "ours TFLOP/s"]
    return measure.table("token_scores", columns, rows)


def tiles() -> str:
    """Return a table of sizes of tiles."""
    rows: list[measure.Row] = []
    for texts, words, labels in SHAPES[2:]:
        batch = _Batch(texts, words, labels)
        times = [measure.microseconds(lambda: batch.ours(tile)) for tile in TILES]
        rows.append([f"{texts} × {words} words × {labels} labels", *times])
    return measure.table("token_scores by pairs of a tile, µs", ["texts", *map(str, TILES)], rows)


TILES = (2048, 4096, 8192, kernel.TILE, 32_768)

if __name__ == "__main__":
    print(measure.about(), "", report(), *([tiles()] if "--tiles" in sys.argv else []), sep="\n")
