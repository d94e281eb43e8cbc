"""Rotary position embedding, in place."""

from __future__ import annotations

import torch

from encoder_kernels import checks
from encoder_kernels.dispatch import runs_triton
from encoder_kernels.rotary import reference

__all__ = ["rotary"]


def rotary(query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, inverse_frequency: torch.Tensor) -> None:
    """Rotate ``query`` and ``key`` in place by their positions.

    Element ``n`` of the first half of a head and element ``n`` of the second are one pair, rotated by
    ``positions[token] * inverse_frequency[n]``. Angles, sine, cosine and the products are in float32.

    Args:
        query: `[tokens, heads, head_size]`; may be a strided view of one qkv buffer.
        key: `[tokens, key_heads, head_size]`; likewise.
        positions: `[tokens]` int64 or int32.
        inverse_frequency: `[head_size / 2]` float32: ``theta ** (-2 n / head_size)``, with the local or the global theta.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", in the halves form of GPT-NeoX.
    """
    checks.floating("query", query, 3)
    checks.floating("key", key, 3)
    checks.like("key", key, query)
    tokens, _, head_size = query.shape
    if head_size % 2:
        raise ValueError(f"query: expected an even head size, found {head_size}")
    if key.shape[0] != tokens or key.shape[2] != head_size:
        raise ValueError(f"key: expected shape ({tokens}, heads, {head_size}), found {tuple(key.shape)}")
    for name, tensor in (("query", query), ("key", key)):
        if tensor.stride(2) != 1:
            raise ValueError(f"{name}: expected a last dimension of stride 1, found {tensor.stride(2)}")
    checks.shaped("positions", positions, (tokens,))
    if positions.dtype not in (torch.int64, torch.int32) or positions.device != query.device:
        raise ValueError(
            f"positions: expected integers on {query.device}, found {positions.dtype} on {positions.device}"
        )
    checks.shaped("inverse_frequency", inverse_frequency, (head_size // 2,))
    if inverse_frequency.dtype != torch.float32 or inverse_frequency.device != query.device:
        raise ValueError(
            f"inverse_frequency: expected float32 on {query.device}, found {inverse_frequency.dtype} on {inverse_frequency.device}"
        )
    if runs_triton(query):
        from encoder_kernels.rotary import kernel

        kernel.launch(query, key, positions, inverse_frequency)
    else:
        reference.rotate(query, key, positions, inverse_frequency)
