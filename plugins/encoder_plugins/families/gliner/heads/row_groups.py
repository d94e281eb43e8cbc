"""Which token rows of a packed batch a head reads: named groups of rows (words, labels, …) of each text, as index arithmetic.

A head declares its groups, and gets the rows of all texts of a batch, group by group, from one gather; a further group needs
no code here. Numpy only: everything is computed on the host, for all texts at once. A text whose positions do not fit its
tokens is left out, because an exception in a pooler ends the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

# the position of a row that has no token: the head reads zeros
NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """What the positions of one group must be.

    Attributes:
        shift: Added to every position, for rows that are read beside the token that marks them.
        may_lack_tokens: Whether a position may be ``NO_TOKEN``.
        may_be_empty: Whether a text may have no row of this group.
    """

    shift: int = 0
    may_lack_tokens: bool = False
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class TextRows:
    """The rows of one text.

    Attributes:
        start: The text's first token in the batch.
        tokens: The text's tokens.
        groups: `[rows]` int32 for each group: the position of each row's token in the text.
    """

    start: int
    tokens: int
    groups: Mapping[str, Ints]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One group's rows of all texts.

    Attributes:
        first: The group's first row in ``RowPlan.rows``.
        offsets: `[texts + 1]` int32: where each text's rows begin in the group, and the end of the last.
        missing: int32: which rows of the group have no token.
    """

    first: int
    offsets: Ints
    missing: Ints

    @property
    def counts(self) -> Ints:
        """Rows of each text, `[texts]` int32."""
        counts: Ints = np.diff(self.offsets)
        return counts

    @property
    def total(self) -> int:
        """Rows of all texts."""
        return int(self.offsets[-1])

    @property
    def most(self) -> int:
        """Rows of the text that has most."""
        return int(self.counts.max(initial=0))

    def of(self, text: int) -> slice:
        """Return which of the group's rows are those of one text."""
        return slice(int(self.offsets[text]), int(self.offsets[text + 1]))


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The rows that a head reads of one batch.

    Attributes:
        texts: `[texts]` int32: the numbers of the texts that are answered.
        rows: int32: the batch's token row of each row, group by group; 0 for rows without a token.
        groups: The groups, in the order of their rows.
    """

    texts: Ints
    rows: Ints
    groups: Mapping[str, RowGroup]


def plan(texts: Sequence[TextRows | None], rules: Mapping[str, GroupRule]) -> RowPlan:
    """Plan a batch.

    Args:
        texts: The texts of the batch; None for one that is not to be answered.
        rules: The head's groups.
    """
    numbers = [number for number, text in enumerate(texts) if text is not None and fits(text, rules)]
    chosen = [text for number in numbers if (text := texts[number]) is not None]
    starts = np.asarray([text.start for text in chosen], np.int32)
    groups: dict[str, RowGroup] = {}
    rows: list[Ints] = []
    first = 0
    for name, rule in rules.items():
        parts = [text.groups[name] for text in chosen]
        offsets = np.zeros(len(parts) + 1, np.int32)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        positions = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        missing = np.flatnonzero(positions == NO_TOKEN).astype(np.int32)
        found = positions + np.repeat(starts, np.diff(offsets)) + np.int32(rule.shift)
        found[missing] = 0
        groups[name] = RowGroup(first, offsets, missing)
        rows.append(found.astype(np.int32))
        first += len(found)
    return RowPlan(np.asarray(numbers, np.int32), np.concatenate(rows) if rows else np.zeros(0, np.int32), groups)


def fits(text: TextRows, rules: Mapping[str, GroupRule]) -> bool:
    """Return whether a text has the rows that each group requires, all of them within its tokens."""
    return all(name in text.groups and _fits(text.groups[name], text.tokens, rule) for name, rule in rules.items())


def _fits(positions: Ints, tokens: int, rule: GroupRule) -> bool:
    if not len(positions):
        return rule.may_be_empty
    least = NO_TOKEN if rule.may_lack_tokens else 0
    # a row without a token is not shifted
    lowest = int(positions.min())
    return lowest >= least and int(positions.max()) + rule.shift < tokens
