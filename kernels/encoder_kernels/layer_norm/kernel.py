# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Layer normalisation in Triton: one pass, a row stays in registers from its load to its store."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def layer_norm_kernel(
    hidden,
    residual,
    weight,
    bias,
    out,
    total,
    hidden_token,
    residual_token,
    tokens,
    epsilon,
    SIZE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_TOTAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Normalise ``BLOCK_M`` rows."""
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = tl.arange(0, BLOCK_N)
    inside = columns < SIZE
    mask = (rows < tokens)[:, None] & inside[None, :]
    values = tl.load(hidden + rows[:, None] * hidden_token + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + rows[:, None] * residual_token + columns[None, :], mask=mask, other=0.0).to(
            tl.float32
        )
    if HAS_TOTAL:
        tl.store(total + rows[:, None] * SIZE + columns[None, :], values.to(total.dtype.element_ty), mask=mask)
    mean = tl.sum(values, 1) / SIZE
    centred = tl.where(inside[None, :], values - mean[:, None], 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, 1) / SIZE + epsilon)
    normal = centred / deviation[:, None] * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        normal += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(out + rows[:, None] * SIZE + columns[None, :], normal.to(out.dtype.element_ty), mask=mask)


def settings(size: int) -> dict[str, int]:
    """Return the launch settings."""
    width = triton.next_power_of_2(size)
    return {"BLOCK_M": max(1, 2048 // width), "num_warps": 4 if width <= 4096 else 8}


def launch(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    residual: torch.Tensor | None,
    return_sum: bool,
    chosen: dict[str, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised rows and, when asked for, the sum (else the former again); the launch settings can be given."""
    tokens, size = hidden.shape
    out = torch.empty((tokens, size), dtype=hidden.dtype, device=hidden.device)
    total = torch.empty_like(out) if return_sum else out
    if tokens:
        config = chosen or settings(size)
        layer_norm_kernel[(triton.cdiv(tokens, config["BLOCK_M"]),)](
            hidden,
            hidden if residual is None else residual,
            weight,
            weight if bias is None else bias,
            out,
            total,
            hidden.stride(0),
            0 if residual is None else residual.stride(0),
            tokens,
            epsilon,
            SIZE=size,
            HAS_BIAS=bias is not None,
            HAS_RESIDUAL=residual is not None,
            HAS_TOTAL=return_sum,
            BLOCK_N=triton.next_power_of_2(size),
            **config,
        )
    return out, total
