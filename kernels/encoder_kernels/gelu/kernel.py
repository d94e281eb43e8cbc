# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The activation in Triton: one pass, every element read and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def erf(x, EXACT: tl.constexpr):
    """Return the error function of float32 values."""
    if EXACT:
        return tl.erf(x)
    # within 1.5e-7, far below a 16-bit type's step (Abramowitz and Stegun 7.1.26); the exact one costs a tenth of the bandwidth
    size = tl.abs(x)
    t = 1.0 / (1.0 + 0.3275911 * size)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    value = 1.0 - series * tl.exp2(size * size * -1.4426950408889634)
    return tl.where(x < 0, -value, value)


@triton.jit(do_not_specialize=["tokens"])
def gelu_kernel(
    rows,
    out,
    rows_token,
    out_token,
    tokens,
    size,
    EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write one tile of the output."""
    numbers = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (numbers < tokens)[:, None] & (columns < size)[None, :]
    numbers = numbers.to(tl.int64)[:, None]
    x = tl.load(rows + numbers * rows_token + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    activated = 0.5 * x * (1.0 + erf(x * 0.7071067811865476, EXACT))
    tl.store(out + numbers * out_token + columns[None, :], activated.to(out.dtype.element_ty), mask=mask)


def settings(size: int, most: int = 512) -> dict[str, int]:
    """Return the launch settings: the widest tile that divides a row, up to ``most`` columns."""
    width = most
    while size % width and width > 128:
        width //= 2
    return {"BLOCK_M": 4 * most // width, "BLOCK_N": width, "num_warps": 4}


def launch(rows: torch.Tensor, out: torch.Tensor, chosen: dict[str, int] | None = None) -> None:
    """Run the kernel; arguments as in ``gelu``, and the launch settings when they are not to be the usual ones."""
    tokens, size = out.shape
    if not (tokens and size):
        return
    config = chosen or settings(size)
    gelu_kernel[(triton.cdiv(tokens, config["BLOCK_M"]), triton.cdiv(size, config["BLOCK_N"]))](
        rows,
        out,
        rows.stride(0),
        out.stride(0),
        tokens,
        size,
        EXACT=rows.dtype == torch.float32,
        **config,
    )
