"""The gate of a GeGLU feed-forward: an activation of one half times the other."""

from __future__ import annotations

from typing import Literal

import torch

from encoder_kernels import checks
from encoder_kernels.dispatch import runs_triton
from encoder_kernels.gated_linear_unit import reference

__all__ = ["Activation", "gated_linear_unit"]

Activation = Literal["gelu", "gelu_tanh"]


def gated_linear_unit(gate_up: torch.Tensor, activation: Activation, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``activation(gate_up[:, :size]) * gate_up[:, size:]``, computed in float32.

    ``gelu(x) = x / 2 * (1 + erf(x / sqrt(2)))``; ``gelu_tanh(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``.

    Args:
        gate_up: `[tokens, 2 * size]`; rows may be strided.
        activation: ``gelu`` (ModernBERT) or ``gelu_tanh`` (mT5).
        out: `[tokens, size]`, written to when given; rows may be strided.

    Returns:
        ``out``, `[tokens, size]`.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: Shazeer, "GLU Variants Improve Transformer".
    """
    checks.floating("gate_up", gate_up, 2)
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: expected two halves, found {gate_up.shape[1]} columns")
    checks.dense_columns("gate_up", gate_up)
    if activation not in ("gelu", "gelu_tanh"):
        raise ValueError(f"activation: expected gelu or gelu_tanh, found {activation!r}")
    shape = (gate_up.shape[0], gate_up.shape[1] // 2)
    if out is None:
        out = torch.empty(shape, dtype=gate_up.dtype, device=gate_up.device)
    else:
        checks.shaped("out", out, shape)
        checks.like("out", out, gate_up)
        checks.dense_columns("out", out)
    if runs_triton(gate_up):
        from encoder_kernels.gated_linear_unit import kernel

        kernel.launch(gate_up, activation, out)
    else:
        reference.gate(gate_up, activation, out)
    return out
