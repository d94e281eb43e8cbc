"""The learned layers of GLiNER's span models behind the encoder; ``span.py`` says why they are in this order."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.layers import MarkedHead


class Scored(NamedTuple):
    """What every span's score is computed from.

    Attributes:
        start: `[words, 4 * size]`: each word's share of the inner layer of the spans that it begins.
        end: `[words, 4 * size]`: that of the spans that it ends.
        label: `[labels, 4 * size]`: what a span's inner layer is multiplied by.
        label_bias: `[labels]` float32: what is added.
    """

    start: Tensor
    end: Tensor
    label: Tensor
    label_bias: Tensor


class SpanHead(MarkedHead):
    """All learned layers behind the encoder."""

    def __init__(self, encoder_size: int, config: GlinerConfig) -> None:
        super().__init__(encoder_size, config)
        size = config.hidden_size
        self.prompt_in = nn.Linear(size, 4 * size)
        self.prompt_out = nn.Linear(4 * size, size)

    def forward(self, words: Tensor, labels: Tensor, offsets: Tensor, order: Tensor) -> Scored:
        """Return what the spans of a batch are scored with.

        Args:
            words: `[words, size]`: projected rows, the texts one behind the other.
            labels: `[labels, size]`, likewise.
            offsets: `[texts + 1]` int32: where each text's words begin, and the end of the last.
            order: `[texts]` int32: the texts, those with most words first.
        """
        start, end = self.shares(self.read(words, offsets, order))
        return self.folded(start, end, self.prompts(labels))

    def folded(self, start: Tensor, end: Tensor, prompts: Tensor) -> Scored:
        """Return the same for words' shares and for ``prompts``: the layer behind the inner one is folded into the labels."""
        return Scored(start, end, prompts @ self.span_out.weight, prompts.float() @ self.span_out.bias.float())

    def prompts(self, labels: Tensor) -> Tensor:
        """Return what the vectors of spans are multiplied by, `[labels, size]` for `[labels, size]`."""
        prompts: Tensor = self.prompt_out(self.prompt_in(labels).relu_())
        return prompts
