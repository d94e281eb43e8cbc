"""The Dense modules behind an encoder in the engine, for pooled vectors as for rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from encoder_plugins.families.retrieval.dense import DenseSpec


class DenseLayer(nn.Module):
    """``activation(W x + b)``, to which a residual branch may be added."""

    def __init__(self, spec: DenseSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(spec.inputs, spec.outputs, bias=spec.bias, dtype=dtype)
        self.activation: nn.Module = getattr(nn, spec.activation)()
        self.adds_input = spec.residual
        self.residual = (
            nn.Linear(spec.inputs, spec.outputs, bias=False, dtype=dtype) if spec.projects_residual else None
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return `[…, outputs]` for `[…, inputs]`."""
        projected: Tensor = self.activation(self.linear(rows))
        if self.adds_input:
            projected = projected + (rows if self.residual is None else self.residual(rows))
        return projected


class DenseChain(nn.Module):
    """Dense modules one behind the other; none leaves rows as they are.

    Args:
        chain: The modules.
        dtype: What they are computed in. In float32 they cost little for pooled vectors, and round nothing.
    """

    def __init__(self, chain: Sequence[DenseSpec], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        self.layers = nn.ModuleList(DenseLayer(spec, dtype) for spec in chain)

    def forward(self, rows: Tensor) -> Tensor:
        """Return `[…, outputs of the last module]` for `[…, inputs of the first]`, in the chain's dtype."""
        rows = rows.to(self.dtype)
        for layer in self.layers:
            rows = layer(rows)
        return rows
