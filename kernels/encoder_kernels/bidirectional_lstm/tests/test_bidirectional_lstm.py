from __future__ import annotations

import pytest
import torch

from encoder_kernels.bidirectional_lstm import bidirectional_lstm


def weights(form, size: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def]
    scale = hidden**-0.5
    return (
        form.randn(2, 4 * hidden, size) * size**-0.5,
        form.randn(2, 4 * hidden, hidden) * scale,
        form.randn(2, 4 * hidden) * 0.5,
    )


def straightforward(words: torch.Tensor, parameters: tuple[torch.Tensor, ...], lengths: list[int]) -> torch.Tensor:
    """Go word by word, in float64."""
    words, (inputs, recurrent, bias) = words.double().cpu(), (part.double().cpu() for part in parameters)
    hidden = recurrent.shape[2]
    out = torch.zeros(words.shape[0], 2 * hidden, dtype=torch.float64)
    begin = 0
    for length in lengths:
        for side in range(2):
            state = cell = torch.zeros(hidden, dtype=torch.float64)
            for row in range(begin, begin + length) if side == 0 else reversed(range(begin, begin + length)):
                i, f, g, o = (inputs[side] @ words[row] + recurrent[side] @ state + bias[side]).chunk(4)
                cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                state = o.sigmoid() * cell.tanh()
                out[row, side * hidden : (side + 1) * hidden] = state
        begin += length
    return out


@pytest.mark.parametrize(
    ("size", "hidden", "lengths"),
    [
        (32, 32, [5]),
        (24, 32, [1]),
        (48, 24, [3, 0, 1, 7, 2]),
        (64, 40, [4, 4, 4]),
        (32, 64, [1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
    ],
)
def test_every_shape(any_form, close, size: int, hidden: int, lengths: list[int]) -> None:  # type: ignore[no-untyped-def]
    words, parameters = any_form.randn(sum(lengths), size), weights(any_form, size, hidden)
    order = torch.tensor(sorted(range(len(lengths)), key=lambda one: -lengths[one]), dtype=torch.int32).to(
        any_form.device
    )
    result = bidirectional_lstm(words, *parameters, any_form.offsets(lengths), order)
    close(result, straightforward(words, parameters, lengths))
    other = bidirectional_lstm(words, *parameters, any_form.offsets(lengths), order.flip(0).contiguous())
    torch.testing.assert_close(other, result)


def test_a_sequence_depends_on_no_other(form) -> None:  # type: ignore[no-untyped-def]
    parameters = weights(form, 32, 32)
    lengths = [3, 6, 2]
    words = form.randn(sum(lengths), 32)
    order = torch.arange(3, dtype=torch.int32, device=form.device)
    together = bidirectional_lstm(words, *parameters, form.offsets(lengths), order)
    alone = bidirectional_lstm(words[3:9], *parameters, form.offsets([6]), order[:1])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6}.get(form.dtype, 1e-2)
    torch.testing.assert_close(together[3:9], alone, atol=tolerance, rtol=0)


def test_large_gates_saturate(form) -> None:  # type: ignore[no-untyped-def]
    words = torch.full((4, 32), 60.0, dtype=form.dtype, device=form.device)
    inputs, recurrent, bias = weights(form, 32, 32)
    order = torch.zeros(1, dtype=torch.int32, device=form.device)
    result = bidirectional_lstm(words, inputs * 8, recurrent, bias, form.offsets([4]), order)
    assert torch.isfinite(result).all()
    assert result.abs().max() > 0.5


def test_no_words(form) -> None:  # type: ignore[no-untyped-def]
    parameters = weights(form, 16, 16)
    for lengths in ([], [0, 0]):
        order = torch.arange(len(lengths), dtype=torch.int32, device=form.device)
        result = bidirectional_lstm(form.randn(0, 16), *parameters, form.offsets(lengths), order)
        assert result.shape == (0, 32)


@pytest.mark.gpu
def test_more_groups_than_the_gpu_holds_at_once() -> None:
    torch.manual_seed(3)
    lengths = [(one * 7) % 97 + 1 for one in range(3000)]
    words = torch.randn(sum(lengths), 512, device="cuda", dtype=torch.bfloat16)
    inputs, recurrent, bias = (
        (torch.randn(*shape) * 0.05).cuda().bfloat16() for shape in ((2, 1024, 512), (2, 1024, 256), (2, 1024))
    )
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    order = torch.argsort(offsets.diff(), descending=True).int()
    result = bidirectional_lstm(words, inputs, recurrent, bias, offsets.cuda(), order.cuda())
    from encoder_kernels.bidirectional_lstm import reference

    expected = reference.bidirectional_lstm(
        words.float().cpu(), inputs.float().cpu(), recurrent.float().cpu(), bias.float().cpu(), offsets
    )
    assert (result.float().cpu() - expected).abs().max() < 0.03


def test_arguments_are_refused_by_name() -> None:
    words, offsets, order = (
        torch.randn(3, 8),
        torch.tensor([0, 3], dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )
    inputs, recurrent, bias = torch.randn(2, 16, 8), torch.randn(2, 16, 4), torch.randn(2, 16)
    for name, arguments in {
        "words": (words[0], inputs, recurrent, bias, offsets, order),
        "weight_input": (words, inputs[:, :8], recurrent, bias, offsets, order),
        "weight_hidden": (words, inputs, recurrent[:1], bias, offsets, order),
        "bias": (words, inputs, recurrent, bias.double(), offsets, order),
        "offsets": (words, inputs, recurrent, bias, offsets.long(), order),
        "order": (words, inputs, recurrent, bias, offsets, order.repeat(2)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            bidirectional_lstm(*arguments)


@pytest.mark.parametrize(
    ("shared", "multiprocessors", "dtype", "sequences", "expected"),
    [
        pytest.param(228, 132, torch.bfloat16, 128, (16, 32), id="H200"),
        pytest.param(228, 132, torch.bfloat16, 129, (32, 16), id="H200-many"),
        pytest.param(228, 132, torch.float32, 129, (16, 16), id="H200-float32"),
        pytest.param(100, 58, torch.bfloat16, 128, (16, 16), id="L4"),
        pytest.param(100, 58, torch.float32, 1, (16, 8), id="L4-float32"),
        # 24 programs of 16 units would need 24 multiprocessors at once
        pytest.param(164, 14, torch.bfloat16, 129, (16, 32), id="a-seventh-of-an-A100"),
        pytest.param(164, 14, torch.float32, 1, None, id="a-seventh-of-an-A100-float32"),
    ],
)
def test_programs_of_a_group_fit_into_a_gpu_at_once(
    shared: int, multiprocessors: int, dtype: torch.dtype, sequences: int, expected: tuple[int, int] | None
) -> None:
    from encoder_kernels.bidirectional_lstm import kernel

    if expected is None:
        with pytest.raises(RuntimeError, match=r"384 units in .*float32 does not fit into a GPU of 14"):
            kernel.settings(dtype, sequences, 384, shared * 1024, multiprocessors)
    else:
        found = kernel.settings(dtype, sequences, 384, shared * 1024, multiprocessors)
        assert (found["BLOCK_S"], found["BLOCK_U"]) == expected
