"""The rotation in plain PyTorch: what CPUs run, and what the kernel is tested against."""

from __future__ import annotations

import torch


def rotate(query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, inverse_frequency: torch.Tensor) -> None:
    """Rotate both tensors in place; arguments as in ``rotary``."""
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    angles = (positions[:, None, None].float() * inverse_frequency).to(exact)
    cosine, sine = angles.cos(), angles.sin()
    for tensor in (query, key):
        first, second = (half.to(exact) for half in tensor.chunk(2, dim=2))
        tensor.copy_(torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=2))
