# ruff: noqa: N803 - what a Triton kernel is compiled for is written in capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Disentangled attention in Triton with nothing but matrix products: for 16-bit types.

Within a tile of ``B`` queries by ``B`` keys a position term is a function of ``i - j``, which takes ``2 B - 1`` values: as many as the terms
of its Fourier series. ``cos(w (i - j))`` is ``cos(w i) cos(w j) + sin(w i) sin(w j)``, and likewise the sine, so a series of ``i - j`` with a
query's own coefficients is a product of a matrix that depends on the query alone and one of waves that never changes. The coefficients are a
query's products with the transformed relative embeddings of that tile's distances. So both terms come from the tensor cores, tile by tile:
there is no gather, and no table of tokens by positions goes through memory. The transformed embeddings are made by a first small launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634


@triton.jit
def _angles(one, other, SIZE: tl.constexpr):
    """Return 2 pi one * other / period, reduced while the product is still an integer."""
    period: tl.constexpr = 2 * SIZE - 1
    product = one * other % period
    return product.to(tl.float32) * (6.283185307179586 / period)


@triton.jit(do_not_specialize=["limit", "reach", "factor"])
def waves_kernel(
    position_key,
    position_query,
    coefficients,
    waves,
    index,
    position_key_head,
    position_key_row,
    position_query_head,
    position_query_row,
    limit,
    reach,
    factor,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Write the Fourier coefficients of one head's embeddings around one tile distance, for one of the two terms."""
    window = tl.program_id(0)
    head = tl.program_id(1)
    frequencies = tl.arange(0, SIZE)
    if (window == 0) & (head == 0):
        angles = _angles(frequencies[:, None], frequencies[None, :], SIZE)
        places = waves + frequencies[:, None] * SIZE + frequencies[None, :]
        tl.store(places, tl.cos(angles))
        tl.store(places + SIZE * SIZE, tl.sin(angles))
    table, table_head, table_row = position_key, position_key_head, position_key_row
    if head >= HEADS:
        table, table_head, table_row = position_query, position_query_head, position_query_row
    steps = tl.arange(0, 2 * SIZE)
    distances = (window - reach) * SIZE + steps - (SIZE - 1)
    rows = tl.load(index + tl.minimum(tl.maximum(distances, -limit), limit) + limit)
    offsets = tl.arange(0, BLOCK_D)
    inside = offsets < HEAD_SIZE
    embeddings = tl.load(
        table + (head % HEADS) * table_head + rows[:, None] * table_row + offsets[None, :],
        mask=inside[None, :] & (steps < 2 * SIZE - 1)[:, None],
        other=0.0,
    ).to(tl.float32)
    # steps - (SIZE - 1), modulo the period
    angles = _angles(frequencies[:, None], (steps + SIZE)[None, :], SIZE)
    weight = factor * tl.where(frequencies == 0, 1.0, 2.0)[:, None] / (2 * SIZE - 1)
    target = coefficients + (head * tl.num_programs(0) + window).to(tl.int64) * (2 * SIZE * BLOCK_D)
    target += frequencies[:, None] * BLOCK_D + offsets[None, :]
    cosines = tl.dot(tl.cos(angles) * weight, embeddings, input_precision="tf32")
    tl.store(target, cosines.to(coefficients.dtype.element_ty))
    sines = tl.dot(tl.sin(angles) * weight, embeddings, input_precision="tf32")
    tl.store(target + SIZE * BLOCK_D, sines.to(coefficients.dtype.element_ty))


@triton.jit(do_not_specialize=["reach", "longest", "factor"])
def waves_attention_kernel(
    query,
    key,
    value,
    out,
    query_coefficients,
    key_coefficients,
    waves,
    cu_seqlens,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    out_token,
    out_head,
    reach,
    longest,
    factor,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SIZE: tl.constexpr,
    LOOP_STAGES: tl.constexpr,
    HAS_C2P: tl.constexpr,
    HAS_P2C: tl.constexpr,
):
    """Write the attention of one block of one sequence's queries in one head."""
    sequence = tl.program_id(2)
    start = tl.load(cu_seqlens + sequence)
    length = tl.minimum(tl.load(cu_seqlens + sequence + 1) - start, longest)
    tile = tl.program_id(0)
    first = tile * SIZE
    if first >= length:
        return
    head = tl.program_id(1).to(tl.int64)
    start = start.to(tl.int64)
    offsets = tl.arange(0, BLOCK_D)
    inside = offsets < HEAD_SIZE
    steps = tl.arange(0, SIZE)
    places = first + steps
    # rows behind the end repeat the last one, which keeps every address valid; they are never stored
    ours = tl.minimum(places, length - 1)
    query += head * query_head + start * query_token
    key += head * key_head + start * key_token
    value += head * value_head + start * value_token
    block = tl.load(
        query + ours.to(tl.int64)[:, None] * query_token + offsets[None, :], mask=inside[None, :], other=0.0
    )
    kind = block.dtype
    # both are symmetric: rows may be places and columns frequencies, or the other way round
    cosine = tl.load(waves + steps[:, None] * SIZE + steps[None, :])
    sine = tl.load(waves + SIZE * SIZE + steps[:, None] * SIZE + steps[None, :])
    cosine_wave = cosine.to(kind)
    sine_wave = sine.to(kind)
    windows = 2 * reach + 1
    query_coefficients += head * windows * (2 * SIZE * BLOCK_D)
    key_coefficients += head * windows * (2 * SIZE * BLOCK_D)

    highest = tl.full([SIZE], float("-inf"), tl.float32)
    total = tl.zeros([SIZE], tl.float32)
    result = tl.zeros([SIZE, BLOCK_D], tl.float32)
    for begin in tl.range(0, length, SIZE, num_stages=LOOP_STAGES):
        others = begin + steps
        theirs = tl.minimum(others, length - 1)
        keys = tl.load(
            key + theirs.to(tl.int64)[None, :] * key_token + offsets[:, None], mask=inside[:, None], other=0.0
        )
        scores = tl.dot(block, keys) * factor
        window = (tl.minimum(tl.maximum((first - begin) // SIZE, -reach), reach) + reach) * (2 * SIZE * BLOCK_D)
        if HAS_C2P:
            wanted = query_coefficients + window + steps[None, :] * BLOCK_D + offsets[:, None]
            even = tl.dot(block, tl.load(wanted))
            odd = tl.dot(block, tl.load(wanted + SIZE * BLOCK_D))
            scores = tl.dot((even * cosine + odd * sine).to(kind), cosine_wave, scores)
            scores = tl.dot((even * sine - odd * cosine).to(kind), sine_wave, scores)
        if HAS_P2C:
            wanted = key_coefficients + window + steps[:, None] * BLOCK_D + offsets[None, :]
            even = tl.dot(tl.load(wanted), keys)
            odd = tl.dot(tl.load(wanted + SIZE * BLOCK_D), keys)
            scores = tl.dot(cosine_wave, (even * cosine - odd * sine).to(kind), scores)
            scores = tl.dot(sine_wave, (even * sine + odd * cosine).to(kind), scores)
        scores = tl.where(others[None, :] < length, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(highest - higher)
        total = total * fade + tl.sum(weights, 1)
        values = tl.load(
            value + theirs.to(tl.int64)[:, None] * value_token + offsets[None, :], mask=inside[None, :], other=0.0
        )
        result = tl.dot(weights.to(kind), values, result * fade[:, None])
        highest = higher
    result = result / total[:, None]
    out += head * out_head + start * out_token
    mask = (places < length)[:, None] & inside[None, :]
    tl.store(
        out + places.to(tl.int64)[:, None] * out_token + offsets[None, :], result.to(out.dtype.element_ty), mask=mask
    )


def settings(head_size: int) -> dict[str, int]:
    """Return the launch settings of the attention, chosen on an H200."""
    return {"SIZE": 64, "LOOP_STAGES": 1, "num_warps": 4 if head_size <= 64 else 8}


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
    chosen: dict[str, int] | None = None,
) -> None:
    """Run both kernels; arguments as in ``disentangled_attention``, and the launch settings when they are not to be the usual ones."""
    tokens, heads, head_size = query.shape
    sequences = cu_seqlens.shape[0] - 1
    longest = min(max_seqlen, tokens)
    if not (tokens and heads and sequences and longest):
        return
    config = chosen or settings(head_size)
    size = config["SIZE"]
    limit = position_index.shape[0] // 2
    tiles = triton.cdiv(longest, size)
    # tiles farther apart than the table reaches see its ends alone
    reach = min(tiles - 1, triton.cdiv(limit, size) + 1)
    width = max(16, triton.next_power_of_2(head_size))
    coefficients = waves = query
    keys, queries = position_key, position_query
    if keys is not None or queries is not None:
        keys = (queries if keys is None else keys).contiguous()  # type: ignore[union-attr]
        queries = keys if queries is None else queries.contiguous()
        coefficients = torch.empty((2 * heads, 2 * reach + 1, 2, size, width), dtype=query.dtype, device=query.device)
        waves = torch.empty((2, size, size), dtype=torch.float32, device=query.device)
        waves_kernel[(2 * reach + 1, 2 * heads)](
            keys,
            queries,
            coefficients,
            waves,
            position_index,
            keys.stride(0),
            keys.stride(1),
            queries.stride(0),
            queries.stride(1),
            limit,
            reach,
            scale * LOG2E,
            HEADS=heads,
            HEAD_SIZE=head_size,
            BLOCK_D=width,
            SIZE=size,
            num_warps=4,
        )
    waves_attention_kernel[(tiles, heads, sequences)](
        query,
        key,
        value,
        out,
        coefficients,
        coefficients[heads:],
        waves,
        cu_seqlens,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        out.stride(0),
        out.stride(1),
        reach,
        longest,
        scale * LOG2E,
        HEAD_SIZE=head_size,
        BLOCK_D=width,
        HAS_C2P=position_key is not None,
        HAS_P2C=position_query is not None,
        **config,
    )
