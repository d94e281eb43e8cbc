"""The LSTM over words against cuDNN's: ``python -m encoder_kernels.bidirectional_lstm.bench``."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import PackedSequence

from encoder_kernels import measure
from encoder_kernels.bidirectional_lstm import bidirectional_lstm, reference

# texts, the words of the shortest and of the longest, width: steps of 32 768 tokens of GLiNER checkpoints, and small ones
SHAPES = (
    (1, 256, 256, 512),
    (32, 64, 64, 512),
    (32, 256, 256, 512),
    (64, 100, 380, 768),
    (37, 100, 380, 1024),
    (128, 100, 380, 512),
    (512, 16, 64, 512),
)


def report() -> str:
    """Return the table."""
    columns = [
        "texts (bf16)",
        "ours µs",
        "reference µs",
        "cuDNN's, packed before µs",
        "ours a word of the longest µs",
        "times cuDNN's",
    ]
    return measure.table("bidirectional_lstm", columns, [_row(*shape) for shape in SHAPES])


def _row(texts: int, shortest: int, longest: int, size: int) -> measure.Row:
    lengths = torch.linspace(shortest, longest, texts).long()
    lengths = lengths[torch.randperm(texts)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    order = torch.argsort(lengths, descending=True).int().cuda()
    hidden = size // 2
    layer = torch.nn.LSTM(size, hidden, bidirectional=True).cuda().bfloat16()
    layer.flatten_parameters()
    words = torch.randn(int(lengths.sum()), size, device="cuda", dtype=torch.bfloat16)

    def both(name: str) -> torch.Tensor:
        directions = (getattr(layer, f"{name}_l0{suffix}") for suffix in ("", "_reverse"))
        return torch.stack([parameter.detach() for parameter in directions])

    parameters = (both("weight_ih"), both("weight_hh"), both("bias_ih") + both("bias_hh"))
    packed_rows, steps = reference.packed_order(offsets)
    packed = PackedSequence(words[packed_rows.cuda()], steps)
    on_device = offsets.cuda()
    with torch.inference_mode():
        ours = measure.microseconds(lambda: bidirectional_lstm(words, *parameters, on_device, order))
        plain = measure.attempt(lambda: reference.bidirectional_lstm(words, *parameters, on_device))
        cudnn = measure.attempt(lambda: layer(packed))
    name = f"{texts} × {shortest}" + (f" to {longest}" if longest > shortest else "") + f" words, {size}"
    return [name, ours, plain, cudnn, ours / longest, None if cudnn is None else cudnn / ours]


if __name__ == "__main__":
    print(measure.about(), "", report(), sep="\n")
