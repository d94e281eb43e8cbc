"""The learned layers of GLiNER's span models behind the encoder; ``span.py`` says why they are in this order."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.layers import StackedLinear, WordHead


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


class SpanHead(WordHead):
    """All learned layers behind the encoder."""

    def __init__(self, encoder_size: int, config: GlinerConfig) -> None:
        super().__init__(encoder_size, config)
        size = config.hidden_size
        self.marker_in = StackedLinear(size, 4 * size)
        self.marker_out = StackedLinear(4 * size, size)
        # the bias belongs to the start; the end's half stays zero
        self.span_in = StackedLinear(size, 4 * size)
        self.span_out = nn.Linear(4 * size, size)
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
        words = self.read(words, offsets, order)
        marked = self.marker_out.both(self.marker_in.each(words).relu_())
        start, end = self.span_in.both(marked.relu_())
        prompts = self.prompt_out(self.prompt_in(labels).relu_())  # [labels, size]
        return Scored(start, end, prompts @ self.span_out.weight, prompts.float() @ self.span_out.bias.float())
