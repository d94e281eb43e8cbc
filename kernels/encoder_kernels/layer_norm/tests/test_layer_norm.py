# mypy: disable-error-code="no-untyped-call, call-arg, misc, arg-type"
from __future__ import annotations

import pytest
import torch

from encoder_kernels.layer_norm import layer_norm


def straightforward(
    total: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    centred = total - total.mean(1, keepdim=True)
    normal = centred / (centred.pow(2).mean(1, keepdim=True) + epsilon).sqrt() * weight.double().cpu()
    return normal if bias is None else normal + bias.double().cpu()


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize(("tokens", "size"), [(0, 8), (1, 1), (3, 37), (17, 128), (5, 768), (2, 1100)])
def test_every_size(form, close, tokens: int, size: int, with_residual: bool, with_bias: bool) -> None:  # type: ignore[no-untyped-def]
    hidden, weight = form.randn(tokens, size) + 3, form.randn(size)
    bias = form.randn(size) if with_bias or size == 1 else None
    residual = form.randn(tokens, size) if with_residual else None
    total = hidden.double().cpu() + (0 if residual is None else residual.double().cpu())
    normal, added = layer_norm(hidden, weight, bias, epsilon=1e-5, residual=residual, return_sum=True)
    close(normal, straightforward(total, weight, bias, 1e-5))
    close(added, total)
    assert torch.equal(layer_norm(hidden, weight, bias, epsilon=1e-5, residual=residual), normal)


def test_statistics_are_in_float32(form) -> None:  # type: ignore[no-untyped-def]
    hidden = torch.full((2, 512), 200.0, dtype=form.dtype, device=form.device)
    hidden[:, ::2] += 1
    ones = torch.ones(512, dtype=form.dtype, device=form.device)
    expected = torch.tensor([1.0, -1.0], dtype=form.dtype, device=form.device).repeat(2, 256)
    torch.testing.assert_close(layer_norm(hidden, ones, epsilon=0.0), expected, atol=1e-3, rtol=1e-3)


def test_strided_rows(form, close) -> None:  # type: ignore[no-untyped-def]
    wide, weight = form.randn(9, 300), form.randn(70)
    result = layer_norm(wide[:, 10:80], weight, epsilon=1e-6, residual=wide[:, 100:170])
    close(result, straightforward((wide[:, 10:80].double() + wide[:, 100:170].double()).cpu(), weight, None, 1e-6))


def test_arguments_are_refused_by_name() -> None:
    hidden, weight = torch.randn(3, 8), torch.randn(8)
    for name, call in {
        "hidden": lambda: layer_norm(torch.randn(8), weight, epsilon=1e-5),
        "weight": lambda: layer_norm(hidden, torch.randn(7), epsilon=1e-5),
        "bias": lambda: layer_norm(hidden, weight, torch.randn(16)[::2], epsilon=1e-5),
        "residual": lambda: layer_norm(hidden, weight, epsilon=1e-5, residual=torch.randn(4, 8)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
