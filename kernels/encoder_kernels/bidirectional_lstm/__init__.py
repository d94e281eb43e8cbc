"""A bidirectional LSTM layer over a packed batch, as one matrix product and one launch."""

from __future__ import annotations

import torch

from encoder_kernels import checks
from encoder_kernels.bidirectional_lstm import reference
from encoder_kernels.dispatch import runs_triton

__all__ = ["bidirectional_lstm"]


def bidirectional_lstm(
    words: torch.Tensor,
    weight_input: torch.Tensor,
    weight_hidden: torch.Tensor,
    bias: torch.Tensor,
    offsets: torch.Tensor,
    order: torch.Tensor,
) -> torch.Tensor:
    """Return each word's state of the forward and of the backward LSTM, side by side.

    ``i, f, g, o = W x_t + U h_(t-1) + b`` in four blocks of ``hidden`` rows, ``c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g)``,
    ``h_t = sigmoid(o) tanh(c_t)``, with ``h`` and ``c`` zero before the first word of a sequence. The cell and the sums are float32.

    cuDNN takes four launches for a step of every direction, which the host can't give as fast as the GPU takes them. Here one launch
    goes over all steps: some programs share a direction, keep their part of U on the chip, and wait for each other between the steps.

    Args:
        words: `[words, size]`, the sequences one behind the other.
        weight_input: `[2, 4 * hidden, size]` W of both directions, ``weight_ih_l0`` and ``weight_ih_l0_reverse`` of torch's LSTM.
        weight_hidden: `[2, 4 * hidden, hidden]` U, likewise.
        bias: `[2, 4 * hidden]`: ``bias_ih + bias_hh``.
        offsets: `[sequences + 1]` int32 on the device: where each sequence begins, and the end of the last.
        order: `[sequences]` int32 on the device: every sequence once. Longest first is fastest; any order is right.

    Returns:
        `[words, 2 * hidden]`

    Raises:
        ValueError: When an argument's shape, type or device does not fit; the message begins with its name.

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997), with the gates of ``torch.nn.LSTM``; the words of GLiNER's
    ``LstmSeq2SeqEncoder``. Weights that stay on the chip: Diamos et al., "Persistent RNNs" (2016).
    """
    _check(words, weight_input, weight_hidden, bias)
    checks.index("offsets", offsets, words)
    checks.index("order", order, words)
    if order.shape[0] != max(0, offsets.shape[0] - 1):
        raise ValueError(f"order: expected {max(0, offsets.shape[0] - 1)} entries, found {order.shape[0]}")
    if runs_triton(words):
        from encoder_kernels.bidirectional_lstm import kernel

        return kernel.launch(words, weight_input, weight_hidden, bias, offsets, order)
    return reference.bidirectional_lstm(words, weight_input, weight_hidden, bias, offsets)


def _check(words: torch.Tensor, weight_input: torch.Tensor, weight_hidden: torch.Tensor, bias: torch.Tensor) -> None:
    checks.floating("words", words, 2)
    checks.floating("weight_hidden", weight_hidden, 3)
    hidden = weight_hidden.shape[2]
    for name, tensor, shape in (
        ("weight_input", weight_input, (2, 4 * hidden, words.shape[1])),
        ("weight_hidden", weight_hidden, (2, 4 * hidden, hidden)),
        ("bias", bias, (2, 4 * hidden)),
    ):
        checks.shaped(name, tensor, shape)
        checks.like(name, tensor, words)
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: expected a dense tensor, found strides {tensor.stride()}")
