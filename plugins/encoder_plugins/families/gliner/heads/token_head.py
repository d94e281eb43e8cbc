"""The learned layers of GLiNER's token-level models behind the encoder; ``token.py`` says why they are in this order."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from encoder_kernels.token_scores import Layers
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.layers import MarkedHead, WordHead


class Factors(NamedTuple):
    """What the scores of every pair of word and label are computed from.

    Attributes:
        word: `[words, 4 * size]`: each word's share of the inner layer.
        label: `[labels, 4 * size]`: each label's share, with the bias.
        word_factor: `[words, size]`: what is multiplied by a label's factor, for the rest of the inner layer.
        label_factor: `[labels, size]`: that of each label.
    """

    word: Tensor
    label: Tensor
    word_factor: Tensor
    label_factor: Tensor


class TokenHead(WordHead):
    """All learned layers behind the encoder; gliner calls the last four ``Scorer``."""

    def __init__(self, encoder_size: int, config: GlinerConfig) -> None:
        super().__init__(encoder_size, config)
        self.size = config.hidden_size
        self.token_in = nn.Linear(self.size, 2 * self.size)
        self.label_in = nn.Linear(self.size, 2 * self.size)
        self.inner = nn.Linear(3 * self.size, 4 * self.size)
        self.out = nn.Linear(4 * self.size, 3)

    def forward(self, words: Tensor, labels: Tensor, offsets: Tensor, order: Tensor) -> Factors:
        """Return what the pairs of a batch are scored with.

        Args:
            words: `[words, size]`: projected rows, the texts one behind the other.
            labels: `[labels, size]`, likewise.
            offsets: `[texts + 1]` int32: where each text's words begin, and the end of the last.
            order: `[texts]` int32: the texts, those with most words first.
        """
        return self.factors(self.read(words, offsets, order), labels)

    def factors(self, words: Tensor, labels: Tensor) -> Factors:
        """Return the same for words behind the LSTM, `[words, size]`, and labels `[labels, size]`."""
        tokens, token_factor = self.token_in(words).chunk(2, dim=-1)
        names, name_factor = self.label_in(labels).chunk(2, dim=-1)
        of_word, of_label = self.inner.weight[:, : 2 * self.size].chunk(2, dim=1)
        return Factors(
            nn.functional.linear(tokens, of_word),
            nn.functional.linear(names, of_label, self.inner.bias),
            token_factor.contiguous(),
            name_factor.contiguous(),
        )

    def layers(self) -> Layers:
        """Return what the score of a pair goes through."""
        return Layers(self.inner.weight[:, 2 * self.size :], self.out.weight, self.out.bias)


class RepresentingTokenHead(TokenHead, MarkedHead):
    """The same with vectors of the spans that words propose, which are multiplied by labels as they are."""


def token_head(encoder_size: int, config: GlinerConfig) -> TokenHead:
    """Return the head of a token-level model."""
    return (RepresentingTokenHead if config.represent_spans else TokenHead)(encoder_size, config)
