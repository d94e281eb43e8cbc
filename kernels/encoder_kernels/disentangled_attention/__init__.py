"""DeBERTa's disentangled self-attention over packed sequences."""

from __future__ import annotations

import torch

from encoder_kernels import checks
from encoder_kernels.disentangled_attention import reference
from encoder_kernels.disentangled_attention.index import linear_index, log_bucket_index
from encoder_kernels.dispatch import runs_triton

__all__ = ["disentangled_attention", "linear_index", "log_bucket_index"]


def disentangled_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position_key: torch.Tensor | None,
    position_query: torch.Tensor | None,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    *,
    scale: float,
    key_lengths: torch.Tensor | None = None,
    tables: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return softmax(scores) value, each sequence on its own, where a pair's score has up to three terms.

    ``score[i, j] = scale * (query_i · key_j + query_i · position_key[row(i - j)] + key_j · position_query[row(i - j)])``,
    and ``row(d) = clamp(d, -limit, limit) + limit``: a table has a row for every distance, so that rows which lie side by side are
    read side by side, and nothing waits for an index. Sums are in float32, of products of the inputs' type; on a GPU the position
    terms are rounded to the inputs' type, as they are in transformers.

    Args:
        query: `[tokens, heads, head_size]`, the sequences one behind the other; may be a strided view of one qkv buffer.
        key: Likewise.
        value: Likewise.
        position_key: `[heads, 2 * limit + 1, head_size]`: the projected relative embeddings for content-to-position, in the order that
            ``log_bucket_index`` (v2, v3) or ``linear_index`` (v1) gives them, or None for none. With ``tables``,
            `[tables, heads, 2 * limit + 1, head_size]`.
        position_query: Those for position-to-content, likewise, or None for none. One order serves both, because the bucket of a
            distance is an odd function of it.
        cu_seqlens: `[sequences + 1]` int32 on the device: where each sequence begins, and the end of the last.
        max_seqlen: At least the longest sequence's length; tokens of a sequence beyond it are not computed.
        scale: Commonly ``1 / sqrt(head_size * terms)``.
        key_lengths: `[sequences]` int32 on the device: how many of each sequence's first tokens are keys, at least 1; None for all. The
            tokens behind them are queries only: they attend to the keys, and nothing attends to them.
        tables: `[sequences]` int32 on the device: which of several projections of the relative embeddings each sequence has; None where
            there is one for all.
        out: `[tokens, heads, head_size]`, written to when given. Rows beyond ``cu_seqlens[-1]`` (graph padding) stay as they are; in a
            fresh tensor they are undefined.

    Returns:
        ``out``, `[tokens, heads, head_size]`.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: He et al., "DeBERTa: Decoding-enhanced BERT with disentangled attention", equations 2 to 4; transformers'
    ``DisentangledSelfAttention``.
    """
    checks.packed(query, key, value, cu_seqlens, max_seqlen, out, key_lengths)
    _, heads, head_size = query.shape
    several = tables is not None
    for name, table in (("position_key", position_key), ("position_query", position_query)):
        if table is None:
            continue
        checks.floating(name, table, 3 + several)
        checks.like(name, table, query)
        if table.shape[-3] != heads or table.shape[-1] != head_size:
            wanted = f"({'tables, ' * several}{heads}, rows, {head_size})"
            raise ValueError(f"{name}: expected shape {wanted}, found {tuple(table.shape)}")
        if table.shape[-2] % 2 != 1:
            raise ValueError(f"{name}: expected 2 * limit + 1 rows, found {table.shape[-2]}")
    if tables is not None:
        checks.index("tables", tables, query)
        checks.shaped("tables", tables, (cu_seqlens.shape[0] - 1,))
    if position_key is not None and position_query is not None and position_key.shape != position_query.shape:
        raise ValueError(
            f"position_query: expected shape {tuple(position_key.shape)}, found {tuple(position_query.shape)}"
        )
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if runs_triton(query):
        from encoder_kernels.disentangled_attention import kernel

        kernel.launch(
            query,
            key,
            value,
            position_key,
            position_query,
            cu_seqlens,
            max_seqlen,
            scale,
            out,
            key_lengths,
            tables,
        )
    else:
        reference.attend(query, key, value, position_key, position_query, cu_seqlens, scale, out, key_lengths, tables)
    return out
