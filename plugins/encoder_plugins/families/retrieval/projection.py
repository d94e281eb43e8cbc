"""The projection between encoder and rows in the engine."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from encoder_plugins.families.retrieval.config import DenseConfig


class Dense(nn.Module):
    """``activation(x W + b)``, and the residual branch beside it."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.inputs, config.outputs, bias=config.bias)
        self.residual = nn.Linear(config.inputs, config.outputs, bias=False) if config.projects_residual else None
        self.adds_input = config.residual and self.residual is None
        self.activation: nn.Module = getattr(nn, config.activation)()

    def forward(self, rows: Tensor) -> Tensor:
        """Return `[rows, outputs]` for `[rows, inputs]`."""
        projected: Tensor = self.activation(self.linear(rows))
        if self.residual is not None:
            projected = projected + self.residual(rows)
        return projected + rows if self.adds_input else projected


class Projection(nn.Sequential):
    """The modules one behind the other; parameters are named by their numbers."""

    def __init__(self, projection: Sequence[DenseConfig]) -> None:
        super().__init__(*(Dense(each) for each in projection))
