"""Attention with a bias by distance in plain PyTorch: what CPUs run, and what the kernel is tested against."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from encoder_kernels import packing

# heads are taken in parts when their scores would have more elements than this
_ELEMENTS = 1 << 26


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    cu_seqlens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    window: int | None = None,
    causal: bool = False,
    key_lengths: torch.Tensor | None = None,
) -> None:
    """Write the attention of every packed sequence to its rows of ``out``; arguments as in ``relative_bias_attention``."""
    heads, each = query.shape[1], query.shape[1] // max(1, key.shape[1])
    if each > 1:
        key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
    for group in packing.groups(cu_seqlens, key_lengths):
        length, sequences = group.length, len(group.lengths)
        terms = _by_distance(bias, window, causal, group, query)  # [heads or 1, length, keys]
        padding = group.key_mask(query.dtype)
        part = max(1, min(heads, _ELEMENTS // (length**2 * sequences)))
        blocks = []
        for first in range(0, heads, part):
            head = slice(first, first + part)
            q = query[:, head][group.rows].transpose(1, 2)
            k, v = (tensor[:, head][group.key_rows].transpose(1, 2) for tensor in (key, value))
            mask = terms if terms is None or bias is None else terms[head]
            if padding is not None:
                mask = padding[:, None] if mask is None else padding[:, None] + mask
            blocks.append(
                scaled_dot_product_attention(
                    q, k, v, attn_mask=None if mask is None else mask.expand(sequences, q.shape[1], -1, -1), scale=scale
                )
            )
        rows = torch.cat(blocks, 1).transpose(1, 2)
        if window is not None and key_lengths is not None:
            behind = torch.arange(length, device=query.device) - group.keys[:, None]  # [sequences, length]
            rows = rows.masked_fill((behind >= window)[:, :, None, None], 0.0)
        packing.scatter(out, group, rows)


def _by_distance(
    bias: torch.Tensor | None, window: int | None, causal: bool, group: packing.Group, query: torch.Tensor
) -> torch.Tensor | None:
    """Return what is added to the scores of each query and key, minus infinity for keys that are not seen; None for nothing."""
    if bias is None and window is None and not causal:
        return None
    distances = torch.arange(1 - group.length, group.key_length, device=query.device)
    if bias is None:
        line = torch.zeros(1, len(distances), dtype=query.dtype, device=query.device)
    else:
        limit = bias.shape[1] // 2
        line = bias[:, distances.clamp(-limit, limit) + limit].to(query.dtype)
    if window is not None:
        line = line.masked_fill(distances.abs() > window, float("-inf"))
    if causal:
        line = line.masked_fill(distances > 0, float("-inf"))
    # row i of the terms is the line from length - 1 - i on: the same memory, read with overlapping rows
    shape = (len(line), group.length, group.key_length)
    return line.flip(1).contiguous().as_strided(shape, (line.shape[1], 1, 1)).flip(2)
