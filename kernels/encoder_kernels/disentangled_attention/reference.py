"""Disentangled attention in plain PyTorch: what CPUs run, and what the kernel is tested against.

The position terms need no gather: a block of queries times the embeddings of all distances that it can reach, ordered by distance, holds
each pair's term at a column that moves by one from row to row. Reading it with a row stride that is one shorter undoes that.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from encoder_kernels import packing

# queries (or keys) whose position terms are computed at once: few enough that most computed distances are used
_BLOCK = 128
# heads are taken in parts when their scores would have more elements than this
_ELEMENTS = 1 << 26


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position_key: torch.Tensor | None,
    position_query: torch.Tensor | None,
    cu_seqlens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    key_lengths: torch.Tensor | None = None,
    tables: torch.Tensor | None = None,
) -> None:
    """Write the attention of every packed sequence to its rows of ``out``; arguments as in ``disentangled_attention``."""
    heads = query.shape[1]
    for group in packing.groups(cu_seqlens, key_lengths, tables):
        own = [t if t is None or tables is None else t[group.kind] for t in (position_key, position_query)]
        part = max(1, min(heads, _ELEMENTS // (group.length**2 * len(group.lengths))))
        blocks = []
        for first in range(0, heads, part):
            head = slice(first, first + part)
            q = query[:, head][group.rows].permute(2, 0, 1, 3).contiguous()
            k, v = (t[:, head][group.key_rows].permute(2, 0, 1, 3).contiguous() for t in (key, value))
            keys, queries = (None if t is None else t[head] for t in own)
            blocks.append(_group(q, k, v, keys, queries, group, scale))
        packing.scatter(out, group, torch.cat(blocks).permute(1, 2, 0, 3))


def _group(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position_key: torch.Tensor | None,
    position_query: torch.Tensor | None,
    group: packing.Group,
    scale: float,
) -> torch.Tensor:
    """Return `[heads, sequences, length, head_size]` for queries of that shape, and keys and values with ``key_length`` rows."""
    heads, sequences, length, _ = query.shape
    keys = key.shape[2]
    bias: torch.Tensor | None = None
    if position_key is not None or position_query is not None:
        bias = query.new_zeros(heads, sequences, length, keys)
    if bias is not None and position_key is not None:
        for first, last in _blocks(length):
            # column c is the distance of the block's last query from key c: its first query's keys begin size - 1 columns further on
            columns = torch.arange(keys + last - first - 1, device=query.device)
            embeddings = position_key[:, _rows(position_key, last - 1 - columns)] * scale
            bias[:, :, first:last] += _shifted(query[:, :, first:last], embeddings)
    if bias is not None and position_query is not None:
        for first, last in _blocks(keys):
            columns = torch.arange(length + last - first - 1, device=query.device)
            embeddings = position_query[:, _rows(position_query, columns - last + 1)] * scale
            bias[:, :, :, first:last] += _shifted(key[:, :, first:last], embeddings).transpose(2, 3)
    mask = group.key_mask(query.dtype)
    if mask is not None:
        bias = mask.expand(heads, -1, length, -1) if bias is None else bias.add_(mask)
    return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(first, min(first + _BLOCK, length)) for first in range(0, length, _BLOCK)]


def _rows(table: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    limit = table.shape[-2] // 2
    return distances.clamp(-limit, limit) + limit


def _shifted(block: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
    """Return `[heads, sequences, size, length]`: row r of ``block · embeddings`` from column ``size - 1 - r`` on."""
    heads, sequences, size, _ = block.shape
    width = embeddings.shape[1]
    products = torch.bmm(block.flatten(1, 2), embeddings.transpose(1, 2))
    strides = (sequences * size * width, size * width, width - 1, 1)
    return products.as_strided((heads, sequences, size, width - size + 1), strides, size - 1)
