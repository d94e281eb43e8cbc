# ruff: noqa: B023 - every closure is called before the next round
"""The gate against a device copy of the same bytes: ``python -m encoder_kernels.gated_linear_unit.bench``."""

from __future__ import annotations

import torch

from encoder_kernels import measure
from encoder_kernels.gated_linear_unit import Activation, gated_linear_unit, reference

TOKENS = 32_768


def report() -> str:
    """Return the table."""
    rows: list[measure.Row] = []
    # ModernBERT-base, mT5-base and mT5-large
    shapes: tuple[tuple[int, Activation], ...] = ((1152, "gelu"), (2048, "gelu_tanh"), (2816, "gelu_tanh"))
    for size, activation in shapes:
        gate_up = torch.randn(TOKENS, 2 * size, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(TOKENS, size, device="cuda", dtype=torch.bfloat16)
        ours = measure.microseconds(lambda: gated_linear_unit(gate_up, activation, out))
        plain = measure.microseconds(lambda: reference.gate(gate_up, activation, out))
        fused = measure.compiled(reference.gate)
        compiled = measure.attempt(lambda: fused(gate_up, activation, out))
        vllm = _vllm(gate_up, activation, out)
        copy = measure.copy_microseconds(gate_up.nbytes, out.nbytes)
        rows.append([f"{TOKENS} × {size} {activation}", ours, plain, compiled, vllm, copy, copy / ours])
    columns = [
        "shape (bf16)",
        "ours µs",
        "reference µs",
        "torch.compile µs",
        "vLLM's op µs",
        "copy µs",
        "share of the copy",
    ]
    return measure.table("gated_linear_unit", columns, rows)


def _vllm(gate_up: torch.Tensor, activation: str, out: torch.Tensor) -> float | None:
    operation = measure.vllm_op("gelu_tanh_and_mul" if activation == "gelu_tanh" else "gelu_and_mul")
    return None if operation is None else measure.attempt(lambda: operation(out, gate_up))


if __name__ == "__main__":
    print(measure.about(), "", report(), sep="\n")
