# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Attention with a bias by distance, a window, or causal, in Triton: flash attention that reads each pair's bias from a line that stays in the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634


# these are slices of one buffer, at another alignment in every batch, for which nothing must be compiled again
@triton.jit(
    do_not_specialize=["limit", "longest", "window"], do_not_specialize_on_alignment=["cu_seqlens", "key_lengths"]
)
def relative_bias_attention_kernel(
    query,
    key,
    value,
    out,
    bias,
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
    limit,
    longest,
    window,
    factor,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_KEYS: tl.constexpr,
):
    """Write the attention of one block of one sequence's queries in one head."""
    sequence = tl.program_id(2)
    start = tl.load(cu_seqlens + sequence)
    length = tl.minimum(tl.load(cu_seqlens + sequence + 1) - start, longest)
    first = tl.program_id(0) * BLOCK_M
    if first >= length:
        return
    keys_end = length
    if HAS_KEYS:
        keys_end = tl.minimum(tl.load(key_lengths + sequence), length)
    keys_begin = 0
    loop_end = keys_end
    if HAS_WINDOW:
        keys_begin = tl.maximum(first - window, 0) // BLOCK_N * BLOCK_N
        loop_end = tl.minimum(keys_end, first + BLOCK_M + window)
    if CAUSAL:
        loop_end = tl.minimum(loop_end, first + BLOCK_M)
    head = tl.program_id(1).to(tl.int64)
    start = start.to(tl.int64)
    offsets = tl.arange(0, BLOCK_D)
    inside = offsets < HEAD_SIZE
    places = first + tl.arange(0, BLOCK_M)
    # rows behind the end repeat the last one, which keeps every address valid; they are never stored
    ours = tl.minimum(places, length - 1)
    query += head * query_head + start * query_token
    key += head // GROUP * key_head + start * key_token
    value += head // GROUP * value_head + start * value_token
    if HAS_BIAS:
        bias += head * (2 * limit + 1) + limit
    block = tl.load(
        query + ours.to(tl.int64)[:, None] * query_token + offsets[None, :], mask=inside[None, :], other=0.0
    )

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # with a bias, blocks of keys that are all at its limit or beyond, before and behind, need one number of it
    near_begin = loop_end
    near_end = loop_end
    if HAS_BIAS:
        near_begin = keys_begin + tl.maximum(first - limit + 1 - keys_begin, 0) // BLOCK_N * BLOCK_N
        near_begin = tl.minimum(near_begin, loop_end)
        near_end = keys_begin + tl.cdiv(first + BLOCK_M - 1 + limit - keys_begin, BLOCK_N) * BLOCK_N
        near_end = tl.minimum(near_end, loop_end)
    for part in tl.static_range(3 if HAS_BIAS else 1):
        part_begin = keys_begin
        part_end = near_begin
        if part == 1:
            part_begin = near_begin
            part_end = near_end
        elif part == 2:
            part_begin = near_end
            part_end = loop_end
        if HAS_BIAS and part != 1:
            far = tl.load(bias + (limit if part == 2 else -limit))
        for begin in range(part_begin, part_end, BLOCK_N):
            others = begin + tl.arange(0, BLOCK_N)
            theirs = tl.minimum(others, keys_end - 1)
            distance = others[None, :] - places[:, None]
            if part == 1:
                terms = tl.load(bias + tl.minimum(tl.maximum(distance, -limit), limit))
            keys = tl.load(
                key + theirs.to(tl.int64)[None, :] * key_token + offsets[:, None], mask=inside[:, None], other=0.0
            )
            scores = tl.dot(block, keys, input_precision=PRECISION) * factor
            if part == 1:
                scores += terms * 1.4426950408889634
            elif HAS_BIAS:
                scores += far * 1.4426950408889634
            seen = others[None, :] < keys_end
            if HAS_WINDOW:
                seen = seen & (tl.abs(distance) <= window)
            if CAUSAL:
                seen = seen & (distance <= 0)
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            shift = higher
            if HAS_WINDOW:
                # a row may see no key of a block, or none at all
                shift = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores - shift[:, None])
            fade = tl.exp2(highest - shift)
            total = total * fade + tl.sum(weights, 1)
            values = tl.load(
                value + theirs.to(tl.int64)[:, None] * value_token + offsets[None, :], mask=inside[None, :], other=0.0
            )
            result = tl.dot(weights.to(values.dtype), values, result * fade[:, None], input_precision=PRECISION)
            highest = higher
    if HAS_WINDOW:
        total = tl.where(total == 0.0, 1.0, total)
    result = result / total[:, None]
    out += head * out_head + start * out_token
    mask = (places < length)[:, None] & inside[None, :]
    tl.store(
        out + places.to(tl.int64)[:, None] * out_token + offsets[None, :], result.to(out.dtype.element_ty), mask=mask
    )


def settings(head_size: int, dtype: torch.dtype, biased: bool) -> dict[str, int]:
    """Return the launch settings: chosen on an H200."""
    if dtype == torch.float32:
        return {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
    if head_size <= 64 and biased:
        # more stages would fetch the bias ahead through shared memory, four bytes at a time: half as fast
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 1, "maxnreg": 128}
    if head_size <= 64:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}


def launch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    scale: float,
    out: torch.Tensor,
    window: int | None = None,
    causal: bool = False,
    key_lengths: torch.Tensor | None = None,
    chosen: dict[str, int] | None = None,
) -> None:
    """Run the kernel; arguments as in ``relative_bias_attention``, and the launch settings when they are not to be the usual ones."""
    tokens, heads, head_size = query.shape
    sequences = cu_seqlens.shape[0] - 1
    longest = min(max_seqlen, tokens)
    if not (tokens and heads and sequences and longest):
        return
    config = chosen or settings(head_size, query.dtype, bias is not None)
    relative_bias_attention_kernel[(triton.cdiv(longest, config["BLOCK_M"]), heads, sequences)](
        query,
        key,
        value,
        out,
        bias,
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
        0 if bias is None else bias.shape[1] // 2,
        longest,
        0 if window is None else window,
        scale * LOG2E,
        GROUP=heads // key.shape[1],
        HEAD_SIZE=head_size,
        BLOCK_D=max(16, triton.next_power_of_2(head_size)),
        HAS_BIAS=bias is not None,
        HAS_WINDOW=window is not None,
        CAUSAL=causal,
        HAS_KEYS=key_lengths is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        **config,
    )
