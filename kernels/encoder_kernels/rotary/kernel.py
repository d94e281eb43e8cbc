# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Norm and rotation in Triton: one pass over query and key, the angles of a token computed once for several heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from encoder_kernels.rotary import HeadNorm


@triton.jit
def _rotate(
    tensor,
    token_stride,
    head_stride,
    rows,
    heads,
    mask,
    cosine,
    sine,
    weight,
    epsilon,
    offset,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    pairs = tl.arange(0, BLOCK_F)
    pointers = (
        tensor
        + rows[:, None, None] * token_stride
        + heads.to(tl.int64)[None, :, None] * head_stride
        + pairs[None, None, :]
    )
    first = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(pointers + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        # elements behind the head are 0 here
        mean = (tl.sum(first * first, 2) + tl.sum(second * second, 2)) / (2 * HALF)
        scale = (1.0 / tl.sqrt(mean + epsilon))[:, :, None]
        within = pairs < HALF
        first *= scale * (tl.load(weight + pairs, mask=within, other=0.0).to(tl.float32) + offset)[None, None, :]
        second *= (
            scale * (tl.load(weight + HALF + pairs, mask=within, other=0.0).to(tl.float32) + offset)[None, None, :]
        )
    tl.store(pointers, (first * cosine - second * sine).to(tensor.dtype.element_ty), mask=mask)
    tl.store(pointers + HALF, (second * cosine + first * sine).to(tensor.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens", "epsilon", "offset"])
def rotary_kernel(
    query,
    key,
    positions,
    inverse_frequency,
    query_weight,
    key_weight,
    query_token,
    query_head,
    key_token,
    key_head,
    tokens,
    epsilon,
    offset,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Rotate ``BLOCK_M`` tokens of ``BLOCK_H`` heads, of query and of key."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    pairs = tl.arange(0, BLOCK_F)
    within = rows < tokens
    frequency = tl.load(inverse_frequency + pairs, mask=pairs < HALF, other=0.0)
    angles = tl.load(positions + rows, mask=within, other=0).to(tl.float32)[:, None] * frequency[None, :]
    cosine = tl.cos(angles)[:, None, :]
    sine = tl.sin(angles)[:, None, :]
    inside = within[:, None, None] & (pairs < HALF)[None, None, :]
    rows = rows.to(tl.int64)
    mask = inside & (heads < QUERY_HEADS)[None, :, None]
    _rotate(
        query,
        query_token,
        query_head,
        rows,
        heads,
        mask,
        cosine,
        sine,
        query_weight,
        epsilon,
        offset,
        HALF,
        NORM,
        BLOCK_F,
    )
    mask = inside & (heads < KEY_HEADS)[None, :, None]
    _rotate(
        key,
        key_token,
        key_head,
        rows,
        heads,
        mask,
        cosine,
        sine,
        key_weight,
        epsilon,
        offset,
        HALF,
        NORM,
        BLOCK_F,
    )


def settings(heads: int, head_size: int) -> dict[str, int]:
    """Return the launch settings."""
    return {"BLOCK_M": 4, "BLOCK_H": 4 if head_size <= 64 else 2, "num_warps": 4}


def launch(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    inverse_frequency: torch.Tensor,
    norm: HeadNorm | None = None,
    chosen: dict[str, int] | None = None,
) -> None:
    """Run the kernel; arguments as in ``rotary``, and the launch settings when they are not to be the usual ones."""
    tokens, heads, head_size = query.shape
    most = max(heads, key.shape[1])
    if not (tokens and most and head_size):
        return
    config = chosen or settings(most, head_size)
    rotary_kernel[(triton.cdiv(tokens, config["BLOCK_M"]), triton.cdiv(most, config["BLOCK_H"]))](
        query,
        key,
        positions.contiguous(),
        inverse_frequency.contiguous(),
        None if norm is None else norm.query,
        None if norm is None else norm.key,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        tokens,
        0.0 if norm is None else norm.epsilon,
        0.0 if norm is None else norm.offset,
        QUERY_HEADS=heads,
        KEY_HEADS=key.shape[1],
        HALF=head_size // 2,
        NORM=norm is not None,
        BLOCK_F=triton.next_power_of_2(head_size // 2),
        **config,
    )
