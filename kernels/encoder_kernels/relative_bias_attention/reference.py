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
    bias: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Write the attention of every packed sequence to its rows of ``out``; arguments as in ``relative_bias_attention``."""
    heads = query.shape[1]
    limit = bias.shape[1] // 2
    for group in packing.groups(cu_seqlens):
        length, sequences = group.length, len(group.lengths)
        distances = torch.arange(1 - length, length, device=query.device).clamp(-limit, limit) + limit
        line = bias[:, distances].to(query.dtype).contiguous()
        # row i of the bias is the line from length - 1 - i on: the same memory, read with overlapping rows
        square = line.flip(1).as_strided((heads, length, length), (2 * length - 1, 1, 1)).flip(2)
        mask = square[None]
        if group.padded:
            padding = torch.arange(length, device=query.device) >= group.lengths[:, None, None, None]
            mask = torch.zeros(padding.shape, dtype=query.dtype, device=query.device).masked_fill_(
                padding, float("-inf")
            )
        part = max(1, min(heads, _ELEMENTS // (length**2 * sequences)))
        blocks = []
        for first in range(0, heads, part):
            head = slice(first, first + part)
            q, k, v = (tensor[:, head][group.rows].transpose(1, 2) for tensor in (query, key, value))
            terms = mask + square[head] if group.padded else mask[:, head]
            blocks.append(
                scaled_dot_product_attention(q, k, v, attn_mask=terms.expand(sequences, -1, -1, -1), scale=scale)
            )
        packing.scatter(out, group, torch.cat(blocks, 1).transpose(1, 2))
