"""The bidirectional LSTM in PyTorch: torch's own, over its packed form of the batch."""

from __future__ import annotations

import torch


def bidirectional_lstm(
    words: torch.Tensor,
    weight_input: torch.Tensor,
    weight_hidden: torch.Tensor,
    bias: torch.Tensor,
    offsets: torch.Tensor,
) -> torch.Tensor:
    """Return `[words, 2 * hidden]`; arguments as in ``encoder_kernels.bidirectional_lstm``."""
    hidden = weight_hidden.shape[2]
    if not words.shape[0]:
        return words.new_empty(0, 2 * hidden)
    order, steps = packed_order(offsets.cpu())
    order = order.to(words.device)
    nothing = torch.zeros_like(bias[0])
    parameters = [part for side in range(2) for part in (weight_input[side], weight_hidden[side], bias[side], nothing)]
    start = words.new_zeros(2, int(steps[0]), hidden)
    result, _, _ = torch.lstm(words[order], steps, (start, start), parameters, True, 1, 0.0, False, True)
    out = torch.empty_like(result)
    out[order] = result
    return out


def packed_order(offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the order in which torch packs a batch, step by step with longer sequences first, and the sequences of each step.

    Args:
        offsets: `[sequences + 1]` on the host.

    Returns:
        ``order`` `[words]` and ``steps`` `[longest]`, int64.
    """
    lengths = offsets.diff().long()
    by_length = torch.argsort(lengths, descending=True, stable=True)
    step = torch.arange(int(lengths.max()))
    inside = step[:, None] < lengths[by_length][None, :]  # [longest, sequences]
    rows = offsets[:-1].long()[by_length][None, :] + step[:, None]
    return rows[inside], inside.sum(1)
