"""Rotary position embedding, in place, with the norm of queries and keys before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from encoder_kernels import checks
from encoder_kernels.dispatch import runs_triton
from encoder_kernels.rotary import reference

__all__ = ["HeadNorm", "rotary"]


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The RMS norm of each head: ``x / sqrt(mean(x^2) + epsilon) * (weight + offset)``, in float32.

    Attributes:
        query: `[head_size]`: the weights of queries.
        key: `[head_size]`: those of keys.
        epsilon: What is added to the mean of the squares.
        offset: What is added to the weights: 1 in Gemma.
    """

    query: torch.Tensor
    key: torch.Tensor
    epsilon: float
    offset: float = 0.0


def rotary(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    inverse_frequency: torch.Tensor,
    norm: HeadNorm | None = None,
) -> None:
    """Normalise the heads of ``query`` and ``key``, if there is a norm, and rotate them by their positions, in place.

    Element ``n`` of the first half of a head and element ``n`` of the second are one pair, rotated by
    ``positions[token] * inverse_frequency[n]``. Angles, sine, cosine and the products are in float32; what the norm gives is not rounded
    before it is rotated.

    Args:
        query: `[tokens, heads, head_size]`; may be a strided view of one qkv buffer.
        key: `[tokens, key_heads, head_size]`; likewise.
        positions: `[tokens]` int64 or int32.
        inverse_frequency: `[head_size / 2]` float32: ``theta ** (-2 n / head_size)``, with the local or the global theta.
        norm: The norm before the rotation; None for none.

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
        checks.dense_columns(name, tensor)
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
    for name, weight in () if norm is None else (("norm.query", norm.query), ("norm.key", norm.key)):
        checks.floating(name, weight, 1)
        checks.shaped(name, weight, (head_size,))
        checks.dense_columns(name, weight)
        if weight.device != query.device:
            raise ValueError(f"{name}: expected a tensor on {query.device}, found {weight.device}")
    if runs_triton(query):
        from encoder_kernels.rotary import kernel

        kernel.launch(query, key, positions, inverse_frequency, norm)
    else:
        reference.rotate(query, key, positions, inverse_frequency, norm)
