# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Disentangled attention in Triton, in one launch and without scratch memory.

A block of queries and one of keys, of equal sizes, meet at distances that are constant along diagonals: row ``r`` and column ``c`` at
``delta + r - c``. Products of the queries with the embeddings of the distances ``delta + u`` have the term of that pair in row ``r`` at column
``u = r - c`` where ``c <= r``, and those with the distances ``delta - BLOCK + u`` at column ``u = r - c + BLOCK`` elsewhere. Of each column only
one of the two is needed: one block, every row turned by its number, holds all terms. The second products are the first ones of the next block
of keys. Keys meet their distances in descending order, which makes their turn the same one, so that both terms of 16 bits are turned at once,
as the halves of a word, between the lanes of a warp. No term is looked up pair by pair. Blocks that lie wholly beyond the farthest distance
need none of this: one embedding serves all of their pairs, and they come last, in a loop of their own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from encoder_kernels import dispatch

LOG2E = 1.4426950408889634


@triton.jit
def _products(
    block,
    distances,
    limit,
    table,
    row_stride,
    offsets,
    inside,
    PRECISION: tl.constexpr,
):
    """Return a block's products with the embeddings of some distances, in float32."""
    rows = tl.minimum(tl.maximum(distances, -limit), limit) + limit
    embeddings = tl.load(table + rows[None, :] * row_stride + offsets[:, None], mask=inside[:, None], other=0.0)
    return tl.dot(block, embeddings, input_precision=PRECISION)


@triton.jit
def _accumulate(scores, values, highest, total, result, PRECISION: tl.constexpr):
    """Return the highest score, the sum of weights and the weighted values of all keys so far, with one more block of them."""
    higher = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    fade = tl.exp2(highest - higher)
    total = total * fade + tl.sum(weights, 1)
    result = tl.dot(weights.to(values.dtype), values, result * fade[:, None], input_precision=PRECISION)
    return higher, total, result


@triton.jit
def _edges(position, row_stride, last, offsets, inside):
    """Return the embeddings of the farthest distance, of keys before a query and of keys behind it, in float32."""
    before = tl.load(position + last * row_stride + offsets, mask=inside, other=0.0).to(tl.float32)
    behind = tl.load(position + offsets, mask=inside, other=0.0).to(tl.float32)
    return before, behind


# these are slices of one buffer, at another alignment in every batch, for which nothing must be compiled again
@triton.jit(
    do_not_specialize=["limit", "longest", "factor"],
    do_not_specialize_on_alignment=["cu_seqlens", "key_lengths", "tables"],
)
def disentangled_attention_kernel(
    query,
    key,
    value,
    out,
    position_key,
    position_query,
    cu_seqlens,
    key_lengths,
    tables,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    out_token,
    out_head,
    position_key_table,
    position_key_head,
    position_key_row,
    position_query_table,
    position_query_head,
    position_query_row,
    limit,
    longest,
    factor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_C2P: tl.constexpr,
    HAS_P2C: tl.constexpr,
    HAS_KEYS: tl.constexpr,
    HAS_TABLES: tl.constexpr,
    HALVES: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write the attention of one block of one sequence's queries in one head."""
    sequence = tl.program_id(2)
    start = tl.load(cu_seqlens + sequence)
    length = tl.minimum(tl.load(cu_seqlens + sequence + 1) - start, longest)
    first = tl.program_id(0) * BLOCK
    if first >= length:
        return
    keys_end = length
    if HAS_KEYS:
        keys_end = tl.minimum(tl.load(key_lengths + sequence), length)
    head = tl.program_id(1).to(tl.int64)
    start = start.to(tl.int64)
    offsets = tl.arange(0, BLOCK_D)
    inside = offsets < HEAD_SIZE
    lanes = tl.arange(0, BLOCK)
    places = first + lanes
    # rows behind the end repeat the last one, which keeps every address valid; they are never stored
    ours = tl.minimum(places, length - 1).to(tl.int64)
    query += head * query_head + start * query_token
    key += head * key_head + start * key_token
    value += head * value_head + start * value_token
    block = tl.load(query + ours[:, None] * query_token + offsets[None, :], mask=inside[None, :], other=0.0)
    table = 0
    if HAS_TABLES:
        table = tl.load(tables + sequence).to(tl.int64)
    turn = (lanes[:, None] - lanes[None, :]) & (BLOCK - 1)
    near = lanes[None, :] <= lanes[:, None]
    pairs = tl.arange(0, 2 * BLOCK)
    left, right = 0, keys_end
    if HAS_C2P or HAS_P2C:
        # blocks of keys that lie wholly beyond the farthest distance, before and after the queries
        left = tl.minimum(tl.maximum(first - limit + 1, 0) // BLOCK * BLOCK, keys_end)
        right = tl.minimum((first + limit + 2 * BLOCK - 2) // BLOCK * BLOCK, keys_end)
    if HAS_C2P:
        position_key += head * position_key_head + table * position_key_table
        nearer = _products(
            block, first - left + lanes, limit, position_key, position_key_row, offsets, inside, PRECISION
        )
    if HAS_P2C:
        position_query += head * position_query_head + table * position_query_table

    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    result = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    # with two stages, a block's keys, values and embeddings are copied to shared memory while the block before it is computed
    for begin in tl.range(left, right, BLOCK, num_stages=STAGES):
        others = begin + lanes
        theirs = tl.minimum(others, keys_end - 1).to(tl.int64)
        keys = tl.load(key + theirs[:, None] * key_token + offsets[None, :], mask=inside[None, :], other=0.0)
        values = tl.load(value + theirs[:, None] * value_token + offsets[None, :], mask=inside[None, :], other=0.0)
        delta = first - begin
        if HAS_C2P:
            # stays in float32: carried in 16 bits, the compiler would let all products wait for each other
            distances = delta - BLOCK + lanes
            farther = _products(block, distances, limit, position_key, position_key_row, offsets, inside, PRECISION)
            query_term = tl.where(near, nearer, farther).to(block.dtype)
            nearer = farther
        if HAS_P2C:
            # both halves in one product: the nearer distances of all columns, then the farther ones
            distances = delta + pairs // BLOCK * BLOCK - pairs % BLOCK
            both = _products(keys, distances, limit, position_query, position_query_row, offsets, inside, PRECISION)
            low, high = tl.split(tl.permute(tl.reshape(both, [BLOCK, 2, BLOCK]), [0, 2, 1]))
            key_term = tl.where(near, low, high).to(block.dtype)
        if HAS_C2P and HAS_P2C and HALVES:
            words = query_term.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            words |= key_term.to(tl.int16, bitcast=True).to(tl.int32) << 16
            words = tl.gather(words, turn, 1)
            query_term = words.to(tl.int16).to(keys.dtype, bitcast=True)
            key_term = (words >> 16).to(tl.int16).to(keys.dtype, bitcast=True)
        else:
            if HAS_C2P:
                query_term = tl.gather(query_term, turn, 1)
            if HAS_P2C:
                key_term = tl.gather(key_term, turn, 1)
        scores = tl.dot(block, tl.trans(keys), input_precision=PRECISION) * factor
        if HAS_C2P:
            scores += query_term.to(tl.float32) * factor
        if HAS_P2C:
            scores += tl.trans(key_term).to(tl.float32) * factor
        scores = tl.where(others[None, :] < keys_end, scores, float("-inf"))
        highest, total, result = _accumulate(scores, values, highest, total, result, PRECISION)
    if HAS_C2P or HAS_P2C:
        # all distances of a block beyond the farthest have the same embedding: its terms are a number of each query and one of each key
        beyond = left + tl.maximum(keys_end - right, 0)
        if beyond > 0:
            if HAS_C2P:
                before, behind = _edges(position_key, position_key_row, 2 * limit, offsets, inside)
                term_before = tl.sum(block.to(tl.float32) * before[None, :], 1).to(block.dtype).to(tl.float32)
                term_behind = tl.sum(block.to(tl.float32) * behind[None, :], 1).to(block.dtype).to(tl.float32)
            if HAS_P2C:
                before, behind = _edges(position_query, position_query_row, 2 * limit, offsets, inside)
            for step in tl.range(0, beyond, BLOCK, num_stages=STAGES):
                others = tl.where(step < left, step, step - left + right) + lanes
                theirs = tl.minimum(others, keys_end - 1).to(tl.int64)
                keys = tl.load(key + theirs[:, None] * key_token + offsets[None, :], mask=inside[None, :], other=0.0)
                values = tl.load(
                    value + theirs[:, None] * value_token + offsets[None, :], mask=inside[None, :], other=0.0
                )
                scores = tl.dot(block, tl.trans(keys), input_precision=PRECISION)
                if HAS_C2P:
                    scores += tl.where(step < left, term_before, term_behind)[:, None]
                if HAS_P2C:
                    embedding = tl.where(step < left, before, behind)
                    far_term = tl.sum(keys.to(tl.float32) * embedding[None, :], 1).to(keys.dtype).to(tl.float32)
                    scores += far_term[None, :]
                scores = tl.where(others[None, :] < keys_end, scores * factor, float("-inf"))
                highest, total, result = _accumulate(scores, values, highest, total, result, PRECISION)
    result = result / total[:, None]
    out += head * out_head + start * out_token
    mask = (places < length)[:, None] & inside[None, :]
    tl.store(
        out + places.to(tl.int64)[:, None] * out_token + offsets[None, :], result.to(out.dtype.element_ty), mask=mask
    )


# bytes of shared memory that a program with two stages takes at most, for heads of 64 in types of 16 bits; the last KiB is the driver's
TWO_STAGES = 112 * 1024 + 1024


def settings(head_size: int, dtype: torch.dtype, shared: int) -> dict[str, int]:
    """Return the launch settings, chosen on an H100 and an H200.

    Args:
        head_size: Width of a head.
        dtype: The inputs' type.
        shared: Bytes of shared memory of a multiprocessor. Two stages pay where two programs share one.
    """
    if dtype == torch.float32 or head_size > 64:
        return {"BLOCK": 32, "STAGES": 1, "num_warps": 2}
    return {"BLOCK": 64, "STAGES": 2 if shared >= 2 * TWO_STAGES else 1, "num_warps": 4}


def launch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position_key: torch.Tensor | None,
    position_query: torch.Tensor | None,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    scale: float,
    out: torch.Tensor,
    key_lengths: torch.Tensor | None = None,
    tables: torch.Tensor | None = None,
    chosen: dict[str, int] | None = None,
) -> None:
    """Run the kernel; arguments as in ``disentangled_attention``, and the launch settings when they are not to be the usual ones."""
    tokens, heads, head_size = query.shape
    sequences = cu_seqlens.shape[0] - 1
    longest = min(max_seqlen, tokens)
    if not (tokens and heads and sequences and longest):
        return
    shared, _ = (0, 0) if dispatch.INTERPRETED else dispatch.multiprocessors(query.device)
    config = chosen or settings(head_size, query.dtype, shared)
    limit = max(0 if table is None else table.shape[-2] // 2 for table in (position_key, position_query))
    keys, queries = (
        # never read where there is no such term
        query if table is None else table if table.stride(-1) == 1 else table.contiguous()
        for table in (position_key, position_query)
    )
    disentangled_attention_kernel[(triton.cdiv(longest, config["BLOCK"]), heads, sequences)](
        query,
        key,
        value,
        out,
        keys,
        queries,
        cu_seqlens,
        key_lengths,
        tables,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        out.stride(0),
        out.stride(1),
        0 if tables is None else keys.stride(0),
        keys.stride(-3),
        keys.stride(-2),
        0 if tables is None else queries.stride(0),
        queries.stride(-3),
        queries.stride(-2),
        limit,
        longest,
        scale * LOG2E,
        HEAD_SIZE=head_size,
        BLOCK_D=max(16, triton.next_power_of_2(head_size)),
        HAS_C2P=position_key is not None,
        HAS_P2C=position_query is not None,
        HAS_KEYS=key_lengths is not None,
        HAS_TABLES=tables is not None,
        HALVES=query.element_size() == 2,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        **config,
    )
