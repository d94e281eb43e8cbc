# ruff: noqa: B023 - every closure is called before the next round
"""The activation against a device copy of the same bytes: ``python -m encoder_kernels.gelu.bench``."""

from __future__ import annotations

import torch

from encoder_kernels import measure
from encoder_kernels.gelu import gelu, reference


def report() -> str:
    """Return the table."""
    rows: list[measure.Row] = []
    # BERT-base and DeBERTa-v3 small and base, then large, in full steps and in one of a single text
    for tokens, size in ((32_768, 3072), (32_768, 4096), (512, 3072)):
        inner = torch.randn(tokens, size, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(inner)
        ours = measure.microseconds(lambda: gelu(inner, out))
        plain = measure.microseconds(lambda: torch.nn.functional.gelu(inner))
        fused = measure.compiled(reference.activate)
        compiled = measure.attempt(lambda: fused(inner, out))
        copy = measure.copy_microseconds(inner.nbytes, out.nbytes)
        rows.append([f"{tokens} × {size}", ours, plain, compiled, copy, copy / ours])
    columns = ["shape (bf16)", "ours µs", "torch's µs", "torch.compile µs", "copy µs", "share of the copy"]
    return measure.table("gelu", columns, rows)


if __name__ == "__main__":
    print(measure.about(), "", report(), sep="\n")
