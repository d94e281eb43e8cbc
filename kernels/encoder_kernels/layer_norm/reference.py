"""Layer normalisation in plain PyTorch: what CPUs run, and what the kernel is tested against."""

from __future__ import annotations

import torch


def normalize(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    residual: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised rows and the sum; arguments as in ``layer_norm``."""
    exact = hidden if hidden.dtype == torch.float64 else hidden.float()
    if residual is not None:
        exact = exact + residual
    normal = torch.nn.functional.layer_norm(
        exact, exact.shape[1:], weight.to(exact.dtype), None if bias is None else bias.to(exact.dtype), epsilon
    )
    return normal.to(hidden.dtype), exact.to(hidden.dtype)
