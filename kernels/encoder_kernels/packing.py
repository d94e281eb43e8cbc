"""How the PyTorch references walk a packed batch: in padded groups of sequences of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

# a group's padded scores stay below this many elements a head
_ELEMENTS = 1 << 22
# a sequence joins a group whose longest is at most this much longer
_SLACK = 1.25


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that are computed together.

    Attributes:
        rows: `[sequences, length]` int64: the packed row of every position; padding repeats the sequence's last row.
        length: The longest sequence's length.
        lengths: `[sequences]` int64.
        padded: Whether any sequence is shorter than ``length``.
    """

    rows: torch.Tensor
    length: int
    lengths: torch.Tensor
    padded: bool


def groups(cu_seqlens: torch.Tensor) -> Iterator[Group]:
    """Yield the batch's sequences, longest first, in groups of similar length; empty ones are left out."""
    borders = cu_seqlens.tolist()
    sequences = [(end - start, start) for start, end in pairwise(borders) if end > start]
    sequences.sort(key=lambda sequence: (-sequence[0], sequence[1]))
    first = 0
    while first < len(sequences):
        longest = sequences[first][0]
        last = first + 1
        while (
            last < len(sequences)
            and sequences[last][0] * _SLACK >= longest
            and (last + 1 - first) * longest * longest <= _ELEMENTS
        ):
            last += 1
        yield _group(sequences[first:last], cu_seqlens.device)
        first = last


def _group(sequences: list[tuple[int, int]], device: torch.device) -> Group:
    lengths, starts = torch.tensor(sequences, device=device).unbind(1)
    longest = sequences[0][0]
    positions = torch.arange(longest, device=device)
    rows = starts[:, None] + torch.minimum(positions[None, :], lengths[:, None] - 1)
    return Group(rows, longest, lengths, sequences[-1][0] != longest)


def scatter(out: torch.Tensor, group: Group, values: torch.Tensor) -> None:
    """Write `[sequences, length, ...]` ``values`` to their packed rows of ``out``."""
    if group.padded:
        kept = torch.arange(group.length, device=out.device)[None, :] < group.lengths[:, None]
        out[group.rows[kept]] = values[kept]
    else:
        out[group.rows.flatten()] = values.flatten(0, 1)
