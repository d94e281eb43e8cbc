# ruff: noqa: B023 - every closure is called before the next round
"""The rotation against a device copy of the same bytes: ``python -m encoder_kernels.rotary.bench``."""

from __future__ import annotations

import torch

from encoder_kernels import measure
from encoder_kernels.rotary import HeadNorm, reference, rotary


def report() -> str:
    """Return the table."""
    rows: list[measure.Row] = []
    for tokens, heads, head_size in ((16_384, 12, 64), (32_768, 12, 64), (32_768, 16, 64)):
        query, key, _ = torch.randn(tokens, 3, heads, head_size, device="cuda", dtype=torch.bfloat16).unbind(1)
        positions = torch.arange(tokens, device="cuda") % 512
        frequency = (160_000.0 ** (-torch.arange(0, head_size, 2, device="cuda").double() / head_size)).float()
        ours = measure.microseconds(lambda: rotary(query, key, positions, frequency))
        plain = measure.microseconds(lambda: reference.rotate(query, key, positions, frequency))
        fused = measure.compiled(reference.rotate)
        compiled = measure.attempt(lambda: fused(query, key, positions, frequency))
        operation, layer = _vllm(query, key, positions, frequency)
        weight = torch.ones(head_size, device="cuda", dtype=query.dtype)
        normed = measure.microseconds(lambda: rotary(query, key, positions, frequency, HeadNorm(weight, weight, 1e-5)))
        bytes_moved = 2 * query.numel() * query.element_size()
        copy = measure.copy_microseconds(bytes_moved, bytes_moved)
        rows.append(
            [
                f"{tokens} × {heads} × {head_size}, query and key",
                ours,
                normed,
                plain,
                compiled,
                operation,
                layer,
                copy,
                copy / ours,
            ]
        )
    columns = [
        "shape (bf16)",
        "ours µs",
        "with norm µs",
        "reference µs",
        "torch.compile µs",
        "vLLM's op µs",
        "vLLM's layer, compiled µs",
        "copy µs",
        "share of the copy",
    ]
    return measure.table("rotary", columns, rows)


def _vllm(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, frequency: torch.Tensor
) -> tuple[float | None, float | None]:
    """Return the times of vLLM's operation, and of its layer as a compiled model has it: PyTorch that reads angles from a table."""
    angles = torch.arange(8192, device="cuda").float()[:, None] * frequency
    # its table of angles is kept in the model's type
    cache = torch.cat((angles.cos(), angles.sin()), 1).to(query.dtype)
    flat = (query.flatten(1), key.flatten(1))
    head_size = query.shape[2]
    operation = measure.vllm_op("rotary_embedding")
    layers = measure.peer("vllm.model_executor.layers.rotary_embedding")
    single = compiled = None
    if operation is not None:
        single = measure.attempt(lambda: operation(positions, *flat, head_size, cache, True))
    if layers is not None:
        layer = measure.compiled(layers.RotaryEmbedding.forward_static)
        compiled = measure.attempt(lambda: layer(positions, *flat, head_size, head_size, cache, True))
    return single, compiled


if __name__ == "__main__":
    print(measure.about(), "", report(), sep="\n")
