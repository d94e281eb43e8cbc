"""The rotation in plain PyTorch: what CPUs run, and what the kernel is tested against."""

from __future__ import annotations

import torch


def rotate(query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, inverse_frequency: torch.Tensor) -> None:
    """Rotate both tensors in place; arguments as in ``rotary``."""
    angles = positions[:, None, None].float() * inverse_frequency
    cosine, sine = angles.cos(), angles.sin()
    for tensor in (query, key):
        first, second = (half.float() for half in tensor.chunk(2, dim=2))
        tensor.copy_(torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=2))
