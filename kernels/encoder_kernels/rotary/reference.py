"""The rotation in plain PyTorch: what CPUs run, and what the kernel is tested against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from encoder_kernels.rotary import HeadNorm


def rotate(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    inverse_frequency: torch.Tensor,
    norm: HeadNorm | None = None,
) -> None:
    """Rotate both tensors in place, normalised before if there is a norm; arguments as in ``rotary``."""
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    angles = (positions[:, None, None].float() * inverse_frequency).to(exact)
    cosine, sine = angles.cos(), angles.sin()
    for tensor, weight in zip((query, key), (None, None) if norm is None else (norm.query, norm.key), strict=True):
        rows = tensor.to(exact)
        if norm is not None and weight is not None:
            rows = (
                rows * (rows.square().mean(2, keepdim=True) + norm.epsilon).rsqrt() * (weight.to(exact) + norm.offset)
            )
        first, second = rows.chunk(2, dim=2)
        tensor.copy_(torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=2))
