"""The gate in plain PyTorch: what CPUs run, and what the kernel is tested against."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu


def gate(gate_up: torch.Tensor, activation: str, out: torch.Tensor) -> None:
    """Write ``activation(first half) * second half`` to ``out``."""
    first, second = gate_up.chunk(2, dim=1)
    if gate_up.dtype in (torch.float32, torch.float64):
        torch.mul(gelu(first, approximate=_approximate(activation)), second, out=out)
    else:
        out.copy_(gelu(first.float(), approximate=_approximate(activation)) * second.float())


def _approximate(activation: str) -> str:
    return "tanh" if activation == "gelu_tanh" else "none"
