# mypy: disable-error-code="misc, call-arg, arg-type"
# ruff: noqa: B023 - every closure is called before the next round
"""Attention with a bias by distance, and with masks, against FlashAttention-3 without a bias: ``python -m encoder_kernels.relative_bias_attention.bench``."""

from __future__ import annotations

import torch

from encoder_kernels import measure, measure_attention
from encoder_kernels.relative_bias_attention import reference, relative_bias_attention

# keys to either side in ModernBERT's local layers
WINDOW = 64


def report() -> str:
    """Return the tables."""
    return f"{_biased()}\n{_unbiased()}"


def _biased() -> str:
    flash = measure_attention.flash_attention()
    bias = torch.randn(measure_attention.HEADS, 257, device="cuda")
    rows: list[measure.Row] = []
    for batch in measure_attention.batches():
        out = torch.empty(batch.query.shape, dtype=batch.query.dtype, device="cuda")
        shares = (batch.query, batch.key, batch.value, bias, batch.cu_seqlens)
        ours = measure.microseconds(lambda: relative_bias_attention(*shares, batch.longest, out=out))
        plain = measure.attempt(lambda: reference.attend(*shares, 1.0, out))
        fused = measure.compiled(reference.attend)
        compiled = measure.attempt(lambda: fused(*shares, 1.0, out))
        bound = flash(batch)
        share = None if bound is None else bound / ours
        rows.append(
            [
                batch.name,
                ours,
                plain,
                compiled,
                measure_attention.native(batch),
                bound,
                batch.operations / ours / 1e6,
                share,
            ]
        )
    columns = [
        "lengths (16 384 tokens, 12 × 64, bf16)",
        "ours µs",
        "reference µs",
        "torch.compile µs",
        "torch SDPA, no bias µs",
        "FlashAttention-3, no bias µs",
        "ours TFLOP/s",
        "share of FlashAttention-3",
    ]
    return measure.table("relative_bias_attention", columns, rows)


def _unbiased() -> str:
    flash = measure_attention.flash_attention()
    rows: list[measure.Row] = []
    for batch in measure_attention.batches(longest=8192):
        out = torch.empty(batch.query.shape, dtype=batch.query.dtype, device="cuda")
        row: list[str | float | None] = [batch.name]
        for window, causal in ((None, False), (WINDOW, False), (None, True)):
            ours = measure.microseconds(
                lambda: relative_bias_attention(
                    batch.query,
                    batch.key,
                    batch.value,
                    None,
                    batch.cu_seqlens,
                    batch.longest,
                    window=window,
                    causal=causal,
                    out=out,
                )
            )
            bound = flash(batch, window=-1 if window is None else window, causal=causal)
            row += [ours, bound, None if bound is None else bound / ours]
        rows.append(row)
    columns = [
        "lengths (16 384 tokens, 12 × 64, bf16)",
        "no mask: ours µs",
        "FlashAttention-3 µs",
        "share of it",
        f"window of {WINDOW}: ours µs",
        "FlashAttention-3 µs",
        "share of it",
        "causal: ours µs",
        "FlashAttention-3 µs",
        "share of it",
    ]
    return measure.table("relative_bias_attention without a bias", columns, rows)


if __name__ == "__main__":
    print(measure.about(), "", report(), sep="\n")
