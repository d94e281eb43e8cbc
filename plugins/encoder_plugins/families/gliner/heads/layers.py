"""Layers that several heads are built from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from encoder_kernels.bidirectional_lstm import bidirectional_lstm
from encoder_plugins.families.gliner.config import GlinerConfig


class StackedLinear(nn.Module):
    """Two linear layers of one shape, such as those for start and end, computed together."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, outputs, inputs), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(2, outputs), requires_grad=False)
        for parameter in (self.weight, self.bias):
            parameter.weight_loader = _load_half  # type: ignore[attr-defined]

    def both(self, hidden: Tensor) -> Tensor:
        """Apply each to its `[2, words, inputs]`: `[2, words, outputs]`."""
        results = hidden.new_empty(2, hidden.shape[1], self.bias.shape[1])
        for rows, weight, bias, into in zip(hidden, self.weight, self.bias, results, strict=True):
            # one product adds its bias itself; for a batch of products torch copies the biases into the results first
            torch.addmm(bias, rows, weight.mT, out=into)
        return results

    def each(self, hidden: Tensor) -> Tensor:
        """Apply both to the same `[words, inputs]`: `[2, words, outputs]`."""
        joined = nn.functional.linear(hidden, self.weight.flatten(0, 1), self.bias.flatten())  # [words, 2 * outputs]
        return joined.view(-1, *self.bias.shape).transpose(0, 1)


def _load_half(parameter: nn.Parameter, tensor: Tensor, part: int | str) -> None:
    """Fill the first or the second half; for "columns" both, from one matrix over `[first; second]`."""
    if part == "columns":
        parameter.data.copy_(tensor.view(len(tensor), 2, -1).transpose(0, 1))
    else:
        parameter.data[int(part)].copy_(tensor)


class BiLSTM(nn.Module):
    """One layer of a bidirectional LSTM; the weights of the forward direction precede those of the backward one."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_input = nn.Parameter(torch.zeros(2, 4 * hidden, inputs), requires_grad=False)
        self.weight_hidden = nn.Parameter(torch.zeros(2, 4 * hidden, hidden), requires_grad=False)
        self.bias_input = nn.Parameter(torch.zeros(2, 4 * hidden), requires_grad=False)
        self.bias_hidden = nn.Parameter(torch.zeros(2, 4 * hidden), requires_grad=False)
        for parameter in self.parameters():
            parameter.weight_loader = _load_half  # type: ignore[attr-defined]

    def forward(self, words: Tensor, offsets: Tensor, order: Tensor) -> Tensor:
        """Return `[words, 2 * hidden]` for `[words, inputs]`."""
        bias = self.bias_input + self.bias_hidden
        return bidirectional_lstm(words, self.weight_input, self.weight_hidden, bias, offsets, order)


class WordHead(nn.Module):
    """What precedes the scores of every head: the projection of rows, and the LSTM over words."""

    def __init__(self, encoder_size: int, config: GlinerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.projection = nn.Linear(encoder_size, size) if config.projection else None
        self.lstm = nn.ModuleList(BiLSTM(size, size // 2) for _ in range(config.lstm_layers))

    def project(self, rows: Tensor) -> Tensor:
        """Return `[rows, size]` for the encoder's `[rows, encoder_size]`."""
        if self.projection is None:
            return rows
        projected: Tensor = self.projection(rows)
        return projected

    def read(self, words: Tensor, offsets: Tensor, order: Tensor) -> Tensor:
        """Return projected words `[words, size]` behind the LSTM.

        Args:
            words: `[words, size]`: the texts one behind the other.
            offsets: `[texts + 1]` int32: where each text's words begin, and the end of the last.
            order: `[texts]` int32: the texts, those with most words first.
        """
        for layer in self.lstm:
            words = layer(words, offsets, order)
        return words


class MarkedHead(WordHead):
    """A head with vectors of spans, by their first and their last words; gliner calls these layers ``SpanMarkerV0`` and ``TokenMarker``."""

    def __init__(self, encoder_size: int, config: GlinerConfig) -> None:
        super().__init__(encoder_size, config)
        size = config.hidden_size
        self.marker_in = StackedLinear(size, 4 * size)
        self.marker_out = StackedLinear(4 * size, size)
        # the bias belongs to the start; the end's half stays zero
        self.span_in = StackedLinear(size, 4 * size)
        self.span_out = nn.Linear(4 * size, size)

    def shares(self, words: Tensor) -> Tensor:
        """Return each word's share of the inner layer of spans that it begins, and of those that it ends: `[2, words, 4 * size]`."""
        marked = self.marker_out.both(self.marker_in.each(words).relu_())
        return self.span_in.both(marked.relu_())

    def spans(self, start: Tensor, end: Tensor) -> Tensor:
        """Return the vectors of spans, `[spans, size]`, for the shares of their first and their last words."""
        vectors: Tensor = self.span_out((start + end).relu_())
        return vectors
