# mypy: disable-error-code="no-untyped-call, func-returns-value"
from __future__ import annotations

import pytest
import torch

from encoder_kernels.rotary import HeadNorm, rotary


def frequencies(form, head_size: int, theta: float) -> torch.Tensor:  # type: ignore[no-untyped-def]
    return (theta ** (-torch.arange(0, head_size, 2).double() / head_size)).float().to(form.device)


def straightforward(tensor: torch.Tensor, positions: torch.Tensor, frequency: torch.Tensor) -> torch.Tensor:
    """Rotate with complex numbers; only the angle is rounded, to float32, as documented."""
    first, second = tensor.double().cpu().chunk(2, 2)
    angles = (positions.cpu().float()[:, None] * frequency.cpu()).double()[:, None, :]
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), 2)


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
@pytest.mark.parametrize(
    ("tokens", "heads", "key_heads", "head_size"),
    [(0, 2, 2, 64), (1, 1, 1, 32), (13, 12, 4, 64), (9, 3, 5, 80), (5, 2, 2, 128), (6, 3, 3, 96)],
)
def test_every_shape(any_form, close, tokens: int, heads: int, key_heads: int, head_size: int, theta: float) -> None:  # type: ignore[no-untyped-def]
    buffer = any_form.randn(tokens, heads + 2 * key_heads, head_size)
    query, key, value = buffer.split((heads, key_heads, key_heads), 1)
    frequency = frequencies(any_form, head_size, theta)
    positions = torch.randint(0, 8192, (tokens,)).to(any_form.device)
    expected = [straightforward(tensor, positions, frequency) for tensor in (query, key)]
    untouched = value.clone()
    assert rotary(query, key, positions, frequency) is None
    close(query, expected[0])
    close(key, expected[1])
    assert torch.equal(value, untouched)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(
    ("tokens", "heads", "key_heads", "head_size"), [(0, 2, 2, 64), (13, 16, 8, 64), (5, 3, 1, 256), (6, 3, 5, 96)]
)
def test_heads_are_normalised_first(  # type: ignore[no-untyped-def]
    any_form, close, tokens: int, heads: int, key_heads: int, head_size: int, offset: float
) -> None:
    buffer = any_form.randn(tokens, heads + 2 * key_heads, head_size) * 3
    query, key, value = buffer.split((heads, key_heads, key_heads), 1)
    norm = HeadNorm(any_form.randn(head_size), any_form.randn(head_size) + 1, 0.5, offset)
    frequency, positions = frequencies(any_form, head_size, 1e4), torch.arange(tokens).to(any_form.device)
    expected = []
    for rows, weight in ((query, norm.query), (key, norm.key)):
        exact = rows.double().cpu()
        scaled = exact / (exact.square().mean(2, keepdim=True) + 0.5).sqrt() * (weight.double().cpu() + offset)
        expected.append(straightforward(scaled, positions, frequency))
    untouched = value.clone()
    rotary(query, key, positions, frequency, norm)
    close(query, expected[0])
    close(key, expected[1])
    assert torch.equal(value, untouched)


def test_position_zero_changes_nothing(form) -> None:  # type: ignore[no-untyped-def]
    query = form.randn(4, 2, 32)
    before = query.clone()
    rotary(query, query.clone(), torch.zeros(4, dtype=torch.int32, device=form.device), frequencies(form, 32, 1e4))
    assert torch.equal(query, before)


def test_arguments_are_refused_by_name() -> None:
    query, positions, frequency = torch.randn(3, 2, 32), torch.arange(3), torch.ones(16)
    for name, call in {
        "query": lambda: rotary(torch.randn(3, 2, 33), query, positions, frequency),
        "key": lambda: rotary(query, query[:2], positions, frequency),
        "positions": lambda: rotary(query, query, positions.float(), frequency),
        "inverse_frequency": lambda: rotary(query, query, positions, frequency.double()),
        "norm.query": lambda: rotary(query, query, positions, frequency, HeadNorm(frequency, query[0, 0], 1e-5)),
        "norm.key": lambda: rotary(query, query, positions, frequency, HeadNorm(query[0, 0], query[0], 1e-5)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
