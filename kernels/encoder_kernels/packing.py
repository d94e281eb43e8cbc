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
        keys: `[sequences]` int64: how many of each sequence's rows are keys.
        key_rows: `[sequences, key_length]` int64: the packed row of every key; padding repeats the sequence's last key.
        key_length: Keys of the sequence that has most.
        kind: What all of its sequences have in common; 0 where no kinds were given.
    """

    rows: torch.Tensor
    length: int
    lengths: torch.Tensor
    padded: bool
    keys: torch.Tensor
    key_rows: torch.Tensor
    key_length: int
    kind: int

    def key_mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return `[sequences, 1, key_length]`: 0 for keys and minus infinity for padding; None where there is no padding."""
        padding = torch.arange(self.key_length, device=self.keys.device) >= self.keys[:, None, None]
        if not bool(padding.any()):
            return None
        return torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill_(padding, float("-inf"))


def groups(
    cu_seqlens: torch.Tensor, key_lengths: torch.Tensor | None = None, kinds: torch.Tensor | None = None
) -> Iterator[Group]:
    """Yield the batch's sequences, longest first, in groups of one kind and of similar length; empty ones are left out."""
    offsets = cu_seqlens.tolist()
    counts = [end - start for start, end in pairwise(offsets)]
    keys = counts if key_lengths is None else [min(pair) for pair in zip(key_lengths.tolist(), counts, strict=True)]
    kind = [0] * len(counts) if kinds is None else kinds.tolist()
    sequences = [part for part in zip(counts, offsets[:-1], keys, kind, strict=True) if part[0] > 0]
    sequences.sort(key=lambda sequence: (sequence[3], -sequence[0], sequence[1]))
    first = 0
    while first < len(sequences):
        longest = sequences[first][0]
        last = first + 1
        while (
            last < len(sequences)
            and sequences[last][3] == sequences[first][3]
            and sequences[last][0] * _SLACK >= longest
            and (last + 1 - first) * longest * longest <= _ELEMENTS
        ):
            last += 1
        yield _group(sequences[first:last], cu_seqlens.device)
        first = last


def _group(sequences: list[tuple[int, int, int, int]], device: torch.device) -> Group:
    lengths, starts, keys, _ = torch.tensor(sequences, device=device).unbind(1)
    longest, most = sequences[0][0], max(count for _, _, count, _ in sequences)
    rows, key_rows = (
        starts[:, None] + torch.minimum(torch.arange(size, device=device)[None, :], ends[:, None] - 1)
        for size, ends in ((longest, lengths), (most, keys))
    )
    return Group(rows, longest, lengths, sequences[-1][0] != longest, keys, key_rows, most, sequences[0][3])


def scatter(out: torch.Tensor, group: Group, values: torch.Tensor) -> None:
    """Write `[sequences, length, ...]` ``values`` to their packed rows of ``out``."""
    if group.padded:
        kept = torch.arange(group.length, device=out.device)[None, :] < group.lengths[:, None]
        out[group.rows[kept]] = values[kept]
    else:
        out[group.rows.flatten()] = values.flatten(0, 1)
