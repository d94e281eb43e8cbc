# mypy: disable-error-code="no-untyped-call, call-arg, misc, arg-type"
from __future__ import annotations

import math

import pytest
import torch

from encoder_kernels.gelu import gelu


def straightforward(rows: torch.Tensor) -> torch.Tensor:
    exact = rows.double().cpu()
    return exact / 2 * torch.erfc(-exact / math.sqrt(2))


@pytest.mark.parametrize(("tokens", "size"), [(0, 8), (1, 1), (3, 37), (17, 128), (5, 3072), (2, 1300)])
def test_every_size(any_form, close, tokens: int, size: int) -> None:  # type: ignore[no-untyped-def]
    rows = any_form.randn(tokens, size) * 2
    expected = straightforward(rows)
    out = any_form.poisoned(tokens, size)
    assert gelu(rows, out) is out
    close(out, expected)
    close(gelu(rows), expected)
    close(gelu(rows, rows), expected)


def test_far_values(any_form) -> None:  # type: ignore[no-untyped-def]
    rows = torch.tensor([[-60.0, -12.0, -0.0, 0.0, 12.0, 60.0]], dtype=any_form.dtype, device=any_form.device)
    torch.testing.assert_close(gelu(rows), rows.clamp(min=0), atol=1e-6, rtol=1e-3)


def test_strided_rows(form, close) -> None:  # type: ignore[no-untyped-def]
    wide, target = form.randn(9, 300), form.poisoned(9, 100)
    gelu(wide[:, 10:80], target[:, 20:90])
    close(target[:, 20:90], straightforward(wide[:, 10:80]))
    assert target[:, :20].isnan().all()
    assert target[:, 90:].isnan().all()


@pytest.mark.gpu
def test_addresses_beyond_two_to_the_31() -> None:
    rows = torch.zeros(1_100_000, 2048, dtype=torch.float16, device="cuda")
    rows[-1] = torch.randn(2048, device="cuda")
    expected = straightforward(rows[-1:])[0]
    out = gelu(rows)
    torch.testing.assert_close(out[-1].double().cpu(), expected, atol=1e-3, rtol=1e-2)
    assert not out[:-1].any()


def test_arguments_are_refused_by_name() -> None:
    rows = torch.randn(3, 8)
    for name, call in {
        "rows": lambda: gelu(rows.T),
        "out": lambda: gelu(rows, torch.empty(3, 4)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
    with pytest.raises(ValueError, match=r"^rows: "):
        gelu(torch.ones(3, 8, dtype=torch.int32))
