# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Disentangled attention in Triton, in two launches.

First the products of every query and key with the relative embeddings, as two tables in memory; then an attention that adds each pair's two.
The tables are the larger part of the traffic, so they hold only the rows that a block can meet from its place in its own sequence, and both
are read along their rows: the key's as a tile of keys by queries, transposed in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634


@triton.jit
def _row(distance, index, limit):
    return tl.load(index + tl.minimum(tl.maximum(distance, -limit), limit) + limit)


@triton.jit
def _keys(key_lengths, sequence, length, HAS_KEYS: tl.constexpr):
    keys = length
    if HAS_KEYS:
        keys = tl.minimum(tl.load(key_lengths + sequence), length)
    return keys


@triton.jit(do_not_specialize=["limit", "longest", "factor"])
def position_terms_kernel(
    query,
    key,
    position_key,
    position_query,
    query_terms,
    key_terms,
    index,
    cu_seqlens,
    key_lengths,
    tables,
    query_token,
    query_head,
    key_token,
    key_head,
    position_key_table,
    position_key_head,
    position_key_row,
    position_query_table,
    position_query_head,
    position_query_row,
    terms_head,
    terms_token,
    limit,
    longest,
    factor,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    HAS_C2P: tl.constexpr,
    HAS_P2C: tl.constexpr,
    HAS_KEYS: tl.constexpr,
    HAS_TABLES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write one block's rows of one table, multiplied by ``factor``."""
    sequence = tl.program_id(2)
    start = tl.load(cu_seqlens + sequence)
    length = tl.minimum(tl.load(cu_seqlens + sequence + 1) - start, longest)
    first = tl.program_id(0) * BLOCK_M
    if first >= length:
        return
    keys = _keys(key_lengths, sequence, length, HAS_KEYS)
    head = tl.program_id(1).to(tl.int64)
    is_key = not HAS_C2P
    if HAS_C2P and HAS_P2C:
        is_key = head >= HEADS
        head = head % HEADS
    # distances are query - key
    rows_end = length
    if is_key:
        rows_end = keys
    if first >= rows_end:
        return
    last = tl.minimum(first + BLOCK_M, rows_end) - 1
    if is_key:
        source, token_stride, head_stride = key, key_token, key_head
        table, table_head, table_row, terms = position_query, position_query_head, position_query_row, key_terms
        table_stride = position_query_table
        nearest, farthest = -last, length - 1 - first
    else:
        source, token_stride, head_stride = query, query_token, query_head
        table, table_head, table_row, terms = position_key, position_key_head, position_key_row, query_terms
        table_stride = position_key_table
        nearest, farthest = first - keys + 1, last

    offsets = tl.arange(0, BLOCK_D)
    inside = offsets < HEAD_SIZE
    places = first + tl.arange(0, BLOCK_M)
    stored = places < rows_end
    tokens = start.to(tl.int64) + tl.minimum(places, last)
    block = tl.load(
        source + head * head_stride + tokens[:, None] * token_stride + offsets[None, :], mask=inside[None, :], other=0.0
    )
    terms += head * terms_head + tokens[:, None] * terms_token
    table += head * table_head
    if HAS_TABLES:
        table += tl.load(tables + sequence).to(tl.int64) * table_stride
    end = _row(farthest, index, limit)
    for begin in range(_row(nearest, index, limit) // BLOCK_R * BLOCK_R, end + 1, BLOCK_R):
        columns = begin + tl.arange(0, BLOCK_R)
        rows = tl.minimum(columns, end)
        embeddings = tl.load(table + rows[None, :] * table_row + offsets[:, None], mask=inside[:, None], other=0.0)
        products = tl.dot(block, embeddings, input_precision=PRECISION) * factor
        tl.store(terms + columns[None, :], products.to(terms.dtype.element_ty), mask=stored[:, None])


@triton.jit(do_not_specialize=["limit", "longest", "factor"])
def disentangled_attention_kernel(
    query,
    key,
    value,
    out,
    query_terms,
    key_terms,
    index,
    cu_seqlens,
    key_lengths,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    out_token,
    out_head,
    terms_head,
    terms_token,
    limit,
    longest,
    factor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_C2P: tl.constexpr,
    HAS_P2C: tl.constexpr,
    HAS_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write the attention of one block of one sequence's queries in one head."""
    sequence = tl.program_id(2)
    start = tl.load(cu_seqlens + sequence)
    length = tl.minimum(tl.load(cu_seqlens + sequence + 1) - start, longest)
    first = tl.program_id(0) * BLOCK_M
    if first >= length:
        return
    keys_end = _keys(key_lengths, sequence, length, HAS_KEYS)
    head = tl.program_id(1).to(tl.int64)
    start = start.to(tl.int64)
    offsets = tl.arange(0, BLOCK_D)
    inside = offsets < HEAD_SIZE
    places = first + tl.arange(0, BLOCK_M)
    # rows behind the end repeat the last one, which keeps every address valid; they are never stored
    ours = tl.minimum(places, length - 1)
    query += head * query_head + start * query_token
    key += head * key_head + start * key_token
    value += head * value_head + start * value_token
    block = tl.load(
        query + ours.to(tl.int64)[:, None] * query_token + offsets[None, :], mask=inside[None, :], other=0.0
    )
    if HAS_C2P:
        query_terms += head * terms_head + start * terms_token
        query_rows = query_terms + ours.to(tl.int64) * terms_token
    if HAS_P2C:
        key_terms += head * terms_head + start * terms_token

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # one stage, set here and not at the launch: more would fetch the index ahead through shared memory, four bytes at a time
    for begin in tl.range(0, keys_end, BLOCK_N, num_stages=1):
        others = begin + tl.arange(0, BLOCK_N)
        theirs = tl.minimum(others, keys_end - 1)
        if HAS_C2P:
            rows = _row(ours[:, None] - theirs[None, :], index, limit)
            query_term = tl.load(query_rows[:, None] + rows)
        if HAS_P2C:
            rows = _row(ours[None, :] - theirs[:, None], index, limit)
            key_term = tl.load((key_terms + theirs.to(tl.int64) * terms_token)[:, None] + rows)
        keys = tl.load(
            key + theirs.to(tl.int64)[None, :] * key_token + offsets[:, None], mask=inside[:, None], other=0.0
        )
        scores = tl.dot(block, keys, input_precision=PRECISION) * factor
        if HAS_C2P:
            scores += query_term.to(tl.float32)
        if HAS_P2C:
            scores += tl.trans(key_term).to(tl.float32)
        scores = tl.where(others[None, :] < keys_end, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(highest - higher)
        total = total * fade + tl.sum(weights, 1)
        values = tl.load(
            value + theirs.to(tl.int64)[:, None] * value_token + offsets[None, :], mask=inside[None, :], other=0.0
        )
        result = tl.dot(weights.to(values.dtype), values, result * fade[:, None], input_precision=PRECISION)
        highest = higher
    result = result / total[:, None]
    out += head * out_head + start * out_token
    mask = (places < length)[:, None] & inside[None, :]
    tl.store(
        out + places.to(tl.int64)[:, None] * out_token + offsets[None, :], result.to(out.dtype.element_ty), mask=mask
    )


def settings(head_size: int, dtype: torch.dtype) -> tuple[dict[str, int], dict[str, int]]:
    """Return the launch settings of the two kernels, chosen on an H200."""
    if dtype == torch.float32:
        return (
            {"BLOCK_M": 32, "BLOCK_R": 32, "num_warps": 4, "num_stages": 1},
            {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4},
        )
    return (
        {"BLOCK_M": 64, "BLOCK_R": 64, "num_warps": 4, "num_stages": 2},
        {"BLOCK_M": 64, "BLOCK_N": 64 if head_size <= 64 else 32, "num_warps": 4},
    )


def launch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position_key: torch.Tensor | None,
    position_query: torch.Tensor | None,
    position_index: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    scale: float,
    out: torch.Tensor,
    key_lengths: torch.Tensor | None = None,
    tables: torch.Tensor | None = None,
    chosen: tuple[dict[str, int], dict[str, int]] | None = None,
) -> None:
    """Run both kernels; arguments as in ``disentangled_attention``, and the launch settings when they are not to be the usual ones."""
    tokens, heads, head_size = query.shape
    sequences = cu_seqlens.shape[0] - 1
    longest = min(max_seqlen, tokens)
    if not (tokens and heads and sequences and longest):
        return
    table = position_key if position_key is not None else position_query
    first, second = chosen or settings(head_size, query.dtype)
    limit = position_index.shape[0] // 2
    constants = {
        "HEAD_SIZE": head_size,
        "BLOCK_D": max(16, triton.next_power_of_2(head_size)),
        "HAS_C2P": position_key is not None,
        "HAS_P2C": position_query is not None,
        "HAS_KEYS": key_lengths is not None,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }
    query_terms = key_terms = query
    terms_head = terms_token = 0
    if table is not None:
        width = triton.cdiv(table.shape[-2], first["BLOCK_R"]) * first["BLOCK_R"]
        both = position_key is not None and position_query is not None
        terms = torch.empty((2 if both else 1, heads, tokens, width), dtype=query.dtype, device=query.device)
        query_terms, key_terms = terms[0], terms[-1]
        terms_head, terms_token = tokens * width, width
        keys = table if position_key is None else position_key
        queries = table if position_query is None else position_query
        if keys.stride(-1) != 1 or queries.stride(-1) != 1:
            keys, queries = keys.contiguous(), queries.contiguous()
        position_terms_kernel[(triton.cdiv(longest, first["BLOCK_M"]), heads * (2 if both else 1), sequences)](
            query,
            key,
            keys,
            queries,
            query_terms,
            key_terms,
            position_index,
            cu_seqlens,
            key_lengths,
            tables,
            query.stride(0),
            query.stride(1),
            key.stride(0),
            key.stride(1),
            0 if tables is None else keys.stride(0),
            keys.stride(-3),
            keys.stride(-2),
            0 if tables is None else queries.stride(0),
            queries.stride(-3),
            queries.stride(-2),
            terms_head,
            terms_token,
            limit,
            longest,
            scale * LOG2E,
            HEADS=heads,
            HAS_TABLES=tables is not None,
            **constants,
            **first,
        )
    disentangled_attention_kernel[(triton.cdiv(longest, second["BLOCK_M"]), heads, sequences)](
        query,
        key,
        value,
        out,
        query_terms,
        key_terms,
        position_index,
        cu_seqlens,
        key_lengths,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        out.stride(0),
        out.stride(1),
        terms_head,
        terms_token,
        limit,
        longest,
        scale * LOG2E,
        **constants,
        **second,
    )
