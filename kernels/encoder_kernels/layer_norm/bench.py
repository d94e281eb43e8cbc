# ruff: noqa: B023 - every closure is called before the next round
"""Layer normalisation against a device copy of the same bytes: ``python -m encoder_kernels.layer_norm.bench``."""

from __future__ import annotations

import torch

from encoder_kernels import measure
from encoder_kernels.layer_norm import layer_norm, reference

TOKENS = 32_768


def report() -> str:
    """Return the table."""
    rows: list[measure.Row] = []
    for size, with_residual, return_sum in (
        (768, False, False),
        (768, True, False),
        (768, True, True),
        (1024, True, False),
    ):
        hidden, other = torch.randn(2, TOKENS, size, device="cuda", dtype=torch.bfloat16).unbind(0)
        weight, bias = torch.randn(2, size, device="cuda", dtype=torch.bfloat16).unbind(0)
        residual = other if with_residual else None

        def call(
            hidden: torch.Tensor = hidden,
            weight: torch.Tensor = weight,
            bias: torch.Tensor = bias,
            residual: torch.Tensor | None = residual,
            return_sum: bool = return_sum,
        ) -> object:
            if return_sum:
                return layer_norm(hidden, weight, bias, epsilon=1e-7, residual=residual, return_sum=True)
            return layer_norm(hidden, weight, bias, epsilon=1e-7, residual=residual)

        def plain(
            hidden: torch.Tensor = hidden,
            weight: torch.Tensor = weight,
            bias: torch.Tensor = bias,
            residual: torch.Tensor | None = residual,
            return_sum: bool = return_sum,
        ) -> object:
            normal, total = reference.normalize(hidden, weight, bias, 1e-7, residual)
            return (normal, total) if return_sum else normal

        ours = measure.microseconds(call)
        separate = measure.microseconds(plain)
        native = measure.attempt(
            lambda: torch.nn.functional.layer_norm(
                hidden if residual is None else hidden + residual,
                (size,),
                weight,
                bias,
                1e-7,
            )
        )
        compiled = measure.attempt(measure.compiled(plain))
        copy = measure.copy_microseconds(hidden.nbytes * (1 + with_residual), hidden.nbytes * (1 + return_sum))
        name = f"{TOKENS} × {size}" + (", residual" if with_residual else "") + (", sum" if return_sum else "")
        rows.append([name, ours, separate, native, compiled, copy, copy / ours])
    columns = [
        "shape (bf16)",
        "ours µs",
        "reference µs",
        "torch's add and layer_norm µs",
        "torch.compile µs",
        "copy µs",
        "share of the copy",
    ]
    return measure.table("layer_norm", columns, rows)


if __name__ == "__main__":
    print(measure.about(), "", report(), sep="\n")
