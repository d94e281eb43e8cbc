# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The gate in Triton: one pass, every element read and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from encoder_kernels.gelu.kernel import erf, settings


@triton.jit(do_not_specialize=["tokens"])
def gated_linear_unit_kernel(
    gate_up,
    out,
    gate_up_token,
    out_token,
    tokens,
    size,
    TANH: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write one tile of the output."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows < tokens)[:, None] & (columns < size)[None, :]
    pointers = gate_up + rows.to(tl.int64)[:, None] * gate_up_token + columns[None, :]
    gate = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(pointers + size, mask=mask, other=0.0).to(tl.float32)
    if TANH:
        # x / 2 * (1 + tanh(y)) is x * sigmoid(2 y), which needs no tanh
        activated = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        activated = 0.5 * gate * (1.0 + erf(gate * 0.7071067811865476, EXACT))
    tl.store(
        out + rows.to(tl.int64)[:, None] * out_token + columns[None, :],
        (activated * up).to(out.dtype.element_ty),
        mask=mask,
    )


def launch(gate_up: torch.Tensor, activation: str, out: torch.Tensor, chosen: dict[str, int] | None = None) -> None:
    """Run the kernel; arguments as in ``gated_linear_unit``, and the launch settings when they are not to be the usual ones."""
    tokens, size = out.shape
    if not (tokens and size):
        return
    config = chosen or settings(size, 256)
    gated_linear_unit_kernel[(triton.cdiv(tokens, config["BLOCK_M"]), triton.cdiv(size, config["BLOCK_N"]))](
        gate_up,
        out,
        gate_up.stride(0),
        out.stride(0),
        tokens,
        size,
        TANH=activation == "gelu_tanh",
        EXACT=gate_up.dtype == torch.float32,
        **config,
    )
