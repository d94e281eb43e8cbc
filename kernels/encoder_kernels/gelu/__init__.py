"""The activation of a feed-forward block without a gate: the exact GELU."""

from __future__ import annotations

import torch

from encoder_kernels import checks
from encoder_kernels.dispatch import runs_triton
from encoder_kernels.gelu import reference

__all__ = ["gelu"]


def gelu(rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``x / 2 * (1 + erf(x / sqrt(2)))`` of every element, computed in float32.

    Args:
        rows: `[tokens, size]`; may be strided.
        out: `[tokens, size]`, written to when given; may be strided, and may be ``rows``.

    Returns:
        ``out``, `[tokens, size]`.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units".
    """
    checks.floating("rows", rows, 2)
    checks.dense_columns("rows", rows)
    if out is None:
        out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    else:
        checks.shaped("out", out, tuple(rows.shape))
        checks.like("out", out, rows)
        checks.dense_columns("out", out)
    if runs_triton(rows):
        from encoder_kernels.gelu import kernel

        kernel.launch(rows, out)
    else:
        reference.activate(rows, out)
    return out
