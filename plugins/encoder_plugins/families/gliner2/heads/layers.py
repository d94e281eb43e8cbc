"""The learned layers of GLiNER2's span models behind the encoder; ``pooler.py`` says why they are in this order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from encoder_plugins.families.gliner.heads.layers import StackedLinear
from encoder_plugins.families.gliner.heads.transfers import to_device
from encoder_plugins.families.gliner2.config import Gliner2Config
from encoder_plugins.families.gliner2.heads.layout import EXPANSION, EXPERTS, HEADS, INNER, LAYERS, STEPS

Ints = NDArray[np.int64]


class Mlp(nn.Module):
    """Two linear layers with a rectifier between them."""

    def __init__(self, inputs: int, inner: int, outputs: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, inner, dtype=dtype)
        self.outer = nn.Linear(inner, outputs, dtype=dtype)

    def forward(self, rows: Tensor) -> Tensor:
        """Return `[rows, outputs]` for `[rows, inputs]`, in the layers' own dtype."""
        result: Tensor = self.outer(self.inner(rows.to(self.inner.weight.dtype)).relu_())
        return result


class FieldSteps(NamedTuple):
    """Which fields have a query at which step; steps one behind the other, and fields that have most steps first.

    Attributes:
        fields: `[active]`: the fields that have any query, by steps, most first.
        sizes: The number of queries of each step: those of a step are the first so many fields.
        groups: `[queries]`: which queries attend to each other: those of one task at one step.
    """

    fields: Ints
    sizes: Sequence[int]
    groups: Ints


class Queries(nn.Module):
    """Fields to queries, one for each step: a GRU begins with the field, and its input at a step is that step's row."""

    def __init__(self, size: int, counting_layer: str) -> None:
        super().__init__()
        self.steps = nn.Embedding(STEPS, size)
        self.input = nn.Linear(size, 3 * size)
        self.hidden = nn.Linear(size, 3 * size)
        self.projector = _PROJECTORS[counting_layer](size)

    def forward(self, fields: Tensor, steps: FieldSteps) -> Tensor:
        """Return the queries `[queries, size]` of the active fields `[active, size]`, in the order of ``steps``."""
        inputs = self.input(self.steps.weight[: len(steps.sizes)])  # [steps, 3 * size]
        state = fields
        states = []
        for row, size in zip(inputs, steps.sizes, strict=True):
            state = state[:size]
            reset, update, new = row.chunk(3)
            hidden_reset, hidden_update, hidden_new = self.hidden(state).chunk(3, dim=-1)
            keep = torch.sigmoid(update + hidden_update)
            candidate = torch.tanh(new + torch.sigmoid(reset + hidden_reset) * hidden_new)
            state = (1 - keep) * candidate + keep * state
            states.append(state)
        begun = torch.cat([fields[:size] for size in steps.sizes])
        result: Tensor = self.projector(torch.cat(states), begun, steps.groups)
        return result


class Projector(nn.Module):
    """``count_lstm``: a state and its field through two layers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * size, 4 * size)
        self.outer = nn.Linear(4 * size, size)

    def forward(self, states: Tensor, fields: Tensor, groups: Ints) -> Tensor:
        """Return `[queries, size]`, a function of each row."""
        del groups
        result: Tensor = self.outer(self.inner(torch.cat([states, fields], dim=-1)).relu_())
        return result


class Experts(nn.Module):
    """``count_lstm_moe``: every expert on every state, weighted by a router."""

    def __init__(self, size: int) -> None:
        super().__init__()
        inner = EXPANSION * size
        self.router = _Router(size)
        self.w1 = _parameter(EXPERTS, size, inner)
        self.b1 = _parameter(EXPERTS, inner)
        self.w2 = _parameter(EXPERTS, inner, size)
        self.b2 = _parameter(EXPERTS, size)

    def forward(self, states: Tensor, fields: Tensor, groups: Ints) -> Tensor:
        """Return `[queries, size]`, a function of each row."""
        del fields, groups
        inner = functional.gelu(torch.matmul(states, self.w1) + self.b1[:, None])  # [experts, queries, inner]
        outer = torch.matmul(inner, self.w2) + self.b2[:, None]  # [experts, queries, size]
        weights: Tensor = self.router(states)  # [queries, experts]
        return (weights.T[:, :, None] * outer).sum(0)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape), requires_grad=False)


class _Router(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.outer = nn.Linear(size, EXPERTS)

    def forward(self, states: Tensor) -> Tensor:
        """Return the weight of each expert, `[queries, experts]`."""
        return torch.softmax(self.outer(functional.gelu(self.inner(states))), dim=-1)


class Across(nn.Module):
    """``count_lstm_v2``: the fields of one task attend to each other at each step."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.narrow = nn.Linear(size, INNER)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.wide = nn.ModuleList(nn.Linear(columns, size) for columns in (INNER + size, size, size))

    def forward(self, states: Tensor, fields: Tensor, groups: Ints) -> Tensor:
        """Return `[queries, size]`; a row depends on the rows of its group alone."""
        rows = states + fields
        # each group a row of a table that is as wide as the largest
        order = np.argsort(groups, kind="stable")
        counts = np.bincount(groups)
        begins = np.repeat(np.cumsum(counts) - counts, counts)
        width = int(counts.max())
        places = np.empty(len(groups), np.int64)
        places[order] = groups[order] * width + np.arange(len(groups)) - begins
        where, present = to_device(rows.device, places, np.arange(width)[None] < counts[:, None])
        mask = present[:, None, None]  # [groups, 1, 1, width]
        narrow = rows.new_zeros(len(counts) * width, INNER)
        narrow[where] = self.narrow(rows)
        table = narrow.view(len(counts), width, INNER)
        for layer in self.layers:
            table = layer(table, mask)
        result = torch.cat([table.flatten(0, 1)[where], rows], dim=-1)
        first, second, third = self.wide
        last: Tensor = third(second(first(result).relu_()).relu_())
        return last


class _Layer(nn.Module):
    """A layer of a transformer that normalises behind each part, as PyTorch's own does by default."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(INNER, 3 * INNER)
        self.out = nn.Linear(INNER, INNER)
        self.inner = nn.Linear(INNER, 2 * INNER)
        self.outer = nn.Linear(2 * INNER, INNER)
        self.norm1 = nn.LayerNorm(INNER)
        self.norm2 = nn.LayerNorm(INNER)

    def forward(self, table: Tensor, mask: Tensor) -> Tensor:
        """Return `[groups, width, INNER]`; ``mask`` `[groups, 1, 1, width]` has the rows that are there."""
        groups, width, _ = table.shape
        query, key, value = self.qkv(table).view(groups, width, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        table = self.norm1(table + self.out(mixed.transpose(1, 2).reshape(groups, width, INNER)))
        result: Tensor = self.norm2(table + self.outer(self.inner(table).relu_()))
        return result


_PROJECTORS: dict[str, type[nn.Module]] = {
    "count_lstm": Projector,
    "count_lstm_v2": Across,
    "count_lstm_moe": Experts,
}


class Gliner2Head(nn.Module):
    """All learned layers behind the encoder."""

    def __init__(self, size: int, config: Gliner2Config) -> None:
        super().__init__()
        # a near tie of two counts flips a whole answer, and so may one of two labels: both are small
        self.counts = Mlp(size, 2 * size, STEPS, torch.float32)
        self.classes = Mlp(size, 2 * size, 1, torch.float32)
        self.marker_in = StackedLinear(size, 4 * size)
        self.marker_out = StackedLinear(4 * size, size)
        # the bias belongs to the start; the end's half stays zero
        self.span_in = StackedLinear(size, 4 * size)
        self.span_out = nn.Linear(4 * size, size)
        self.queries = Queries(size, config.counting_layer)

    def spans(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return each word's share of the inner layer of spans that it begins, and of those that it ends: `[words, 4 * size]`."""
        marked = self.marker_out.both(self.marker_in.each(words).relu_())
        start, end = self.span_in.both(marked.relu_())
        return start, end

    def folded(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a span's inner layer is multiplied by, `[queries, 4 * size]`, and what is added, `[queries]` float32."""
        return queries @ self.span_out.weight, queries.float() @ self.span_out.bias.float()
