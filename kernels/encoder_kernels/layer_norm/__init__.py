"""Layer normalisation together with the residual addition before it."""

from __future__ import annotations

from typing import Literal, overload

import torch

from encoder_kernels import checks
from encoder_kernels.dispatch import runs_triton
from encoder_kernels.layer_norm import reference

__all__ = ["layer_norm"]


@overload
def layer_norm(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    residual: torch.Tensor | None = None,
    return_sum: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def layer_norm(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    residual: torch.Tensor | None = None,
    return_sum: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


def layer_norm(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float,
    residual: torch.Tensor | None = None,
    return_sum: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return ``(x - mean(x)) / sqrt(var(x) + epsilon) * weight + bias`` for ``x = hidden + residual``.

    The sum, the mean and the (biased) variance are in float32. With ``return_sum`` the sum comes too, rounded to the inputs' type: what a
    trunk that normalises before its layers passes on; the normalisation takes it before that rounding.

    Args:
        hidden: `[tokens, size]`; rows may be strided.
        weight: `[size]`, dense.
        bias: `[size]`, dense, or None for none.
        epsilon: Added to the variance.
        residual: `[tokens, size]`, added first; rows may be strided.
        return_sum: Whether to return ``hidden + residual`` as well.

    Returns:
        `[tokens, size]`, or that and the sum, `[tokens, size]`.

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: Ba et al., "Layer Normalization".
    """
    checks.floating("hidden", hidden, 2)
    if hidden.stride(1) != 1:
        raise ValueError(f"hidden: expected a last dimension of stride 1, found {hidden.stride(1)}")
    if hidden.shape[1] == 0:
        raise ValueError("hidden: expected at least one column, found none")
    if residual is not None:
        checks.shaped("residual", residual, tuple(hidden.shape))
        checks.like("residual", residual, hidden)
        if residual.stride(1) != 1:
            raise ValueError(f"residual: expected a last dimension of stride 1, found {residual.stride(1)}")
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is None:
            continue
        checks.floating(name, vector, 1)
        checks.shaped(name, vector, (hidden.shape[1],))
        if vector.device != hidden.device or vector.stride(0) != 1:
            raise ValueError(f"{name}: expected a dense vector on {hidden.device}, found one on {vector.device}")
    if runs_triton(hidden):
        from encoder_kernels.layer_norm import kernel

        normal, total = kernel.launch(hidden, weight, bias, epsilon, residual, return_sum)
    else:
        normal, total = reference.normalize(hidden, weight, bias, epsilon, residual)
    return (normal, total) if return_sum else normal
