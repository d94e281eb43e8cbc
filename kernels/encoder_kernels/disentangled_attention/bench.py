# mypy: disable-error-code="misc, call-arg, arg-type"
# ruff: noqa: B023 - every closure is called before the next round
"""Disentangled attention against FlashAttention-3 without position terms: ``python -m encoder_kernels.disentangled_attention.bench``."""

from __future__ import annotations

import torch

from encoder_kernels import measure, measure_attention
from encoder_kernels.disentangled_attention import disentangled_attention, log_bucket_index, reference

BUCKETS, FARTHEST = 256, 512


def report() -> str:
    """Return the table."""
    flash = measure_attention.flash_attention()
    peer = measure.peer("flashdeberta.ops.flash_attention_varlen")
    heads, head_size = measure_attention.HEADS, measure_attention.HEAD_SIZE
    tables = torch.randn(2, heads, 2 * BUCKETS, head_size, device="cuda", dtype=torch.bfloat16).unbind(0)
    index = log_bucket_index(BUCKETS, FARTHEST)
    by_distance = tuple(table[:, index.cuda()] for table in tables)
    scale = (3 * head_size) ** -0.5
    rows: list[measure.Row] = []
    for batch in measure_attention.batches():
        out = torch.empty(batch.query.shape, dtype=batch.query.dtype, device="cuda")
        shares = (batch.query, batch.key, batch.value)
        position = (*by_distance, batch.cu_seqlens)
        ours = measure.microseconds(
            lambda: disentangled_attention(*shares, *position, batch.longest, scale=scale, out=out)
        )
        plain = measure.attempt(lambda: reference.attend(*shares, *position, scale, out))
        fused = measure.compiled(reference.attend)
        compiled = measure.attempt(lambda: fused(*shares, *position, scale, out))
        theirs = None
        if peer is not None:
            theirs = measure.attempt(
                lambda: peer.flash_attention_with_disentangled_varlen(
                    *shares,
                    *(table[None] for table in tables),
                    *(
                        batch.cu_seqlens,
                        batch.cu_seqlens,
                        batch.longest,
                        batch.longest,
                        False,
                        scale,
                        BUCKETS,
                        FARTHEST,
                    ),
                )
            )
        bound = flash(batch)
        operations = batch.operations + _position_operations(batch.lengths, index)
        rows.append(
            [
                batch.name,
                ours,
                plain,
                compiled,
                theirs,
                bound,
                batch.operations / ours / 1e6,
                operations / ours / 1e6,
                None if bound is None else bound / ours,
                None if bound is None else bound / ours * operations / batch.operations,
                None if theirs is None else theirs / ours,
            ]
        )
    columns = [
        "lengths (16 384 tokens, 12 × 64, bf16)",
        "ours µs",
        "reference µs",
        "torch.compile µs",
        "flashdeberta µs",
        "FlashAttention-3, no positions µs",
        "ours TFLOP/s, plain",
        "ours TFLOP/s, with position products",
        "share of FlashAttention-3, plain",
        "share, with position products",
        "times flashdeberta",
    ]
    return measure.table("disentangled_attention", columns, rows)


def _position_operations(lengths: list[int], index: torch.Tensor) -> int:
    """Return the operations of every token's products with the embeddings that its sequence can reach, both ways, once each."""
    limit = len(index) // 2

    def reached(length: int) -> int:
        farthest = min(length - 1, limit)
        return int(index[limit + farthest] - index[limit - farthest]) + 1

    products = sum(length * reached(length) for length in lengths)
    return 4 * measure_attention.HEADS * measure_attention.HEAD_SIZE * products


if __name__ == "__main__":
    print(measure.about(), "", report(), sep="\n")
