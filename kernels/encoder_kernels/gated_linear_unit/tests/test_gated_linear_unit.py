# mypy: disable-error-code="no-untyped-call, call-arg, misc, arg-type"
from __future__ import annotations

import math

import pytest
import torch

from encoder_kernels.gated_linear_unit import gated_linear_unit


def straightforward(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    gate, up = gate_up.double().cpu().chunk(2, 1)
    if activation == "gelu":
        return gate / 2 * torch.erfc(-gate / math.sqrt(2)) * up
    return gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize(("tokens", "size"), [(0, 8), (1, 1), (3, 37), (17, 128), (5, 1152), (2, 1300)])
def test_every_size(any_form, close, activation: str, tokens: int, size: int) -> None:  # type: ignore[no-untyped-def]
    gate_up = any_form.randn(tokens, 2 * size) * 2
    out = any_form.poisoned(tokens, size)
    assert gated_linear_unit(gate_up, activation, out) is out
    close(out, straightforward(gate_up, activation))
    close(gated_linear_unit(gate_up, activation), straightforward(gate_up, activation))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_far_values(any_form, activation: str) -> None:  # type: ignore[no-untyped-def]
    gate = torch.tensor([[-60.0, -12.0, -0.0, 0.0, 12.0, 60.0]], dtype=any_form.dtype, device=any_form.device)
    out = gated_linear_unit(torch.cat((gate, torch.ones_like(gate)), 1), activation)
    torch.testing.assert_close(out, gate.clamp(min=0), atol=1e-6, rtol=1e-3)


def test_strided_rows(form, close) -> None:  # type: ignore[no-untyped-def]
    wide, target = form.randn(9, 300), form.poisoned(9, 100)
    gated_linear_unit(wide[:, 10:150], "gelu", target[:, 20:90])
    close(target[:, 20:90], straightforward(wide[:, 10:150], "gelu"))
    assert target[:, :20].isnan().all()
    assert target[:, 90:].isnan().all()


@pytest.mark.gpu
def test_addresses_beyond_two_to_the_31() -> None:
    gate_up = torch.zeros(1_100_000, 2048, dtype=torch.float16, device="cuda")
    gate_up[-1] = torch.randn(2048, device="cuda")
    out = gated_linear_unit(gate_up, "gelu")
    torch.testing.assert_close(out[-1].double().cpu(), straightforward(gate_up[-1:], "gelu")[0], atol=1e-3, rtol=1e-2)
    assert not out[:-1].any()


def test_arguments_are_refused_by_name() -> None:
    for name, call in {
        "gate_up": lambda: gated_linear_unit(torch.randn(3, 7), "gelu"),
        "activation": lambda: gated_linear_unit(torch.randn(3, 8), "silu"),
        "out": lambda: gated_linear_unit(torch.randn(3, 8), "gelu", torch.empty(3, 8)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
    with pytest.raises(ValueError, match=r"^gate_up: "):
        gated_linear_unit(torch.ones(3, 8, dtype=torch.int32), "gelu")
