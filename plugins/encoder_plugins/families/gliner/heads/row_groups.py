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
        most: Rows of the text that has most.
    """

    first: int
    offsets: Ints
    missing: Ints
    most: int

    @property
    def counts(self) -> Ints:
        """Rows of each text, `[texts]` int32."""
        counts: Ints = np.diff(self.offsets)
        return counts

    @property
    def total(self) -> int:
        """Rows of all texts."""
        return int(self.offsets[-1])

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
    numbers = [number for number, text in enumerate(texts) if text is not None and rules.keys() <= text.groups.keys()]
    chosen = [text for number in numbers if (text := texts[number]) is not None]
    parts = _Parts.of(chosen, rules)
    if not (fine := parts.fitting(chosen, rules)).all():
        kept = np.flatnonzero(fine).tolist()
        numbers, chosen = [numbers[text] for text in kept], [chosen[text] for text in kept]
        parts = _Parts.of(chosen, rules)
    return RowPlan(np.asarray(numbers, np.int32), *parts.rows_and_groups(chosen, rules))


@dataclass(frozen=True, slots=True)
class _Parts:
    """All groups of all texts, group by group, so that numpy is called once for all of them: a call costs more than a text.

    Attributes:
        counts: `[groups, texts]`: rows of each part.
        positions: int32: the positions of all parts, one behind the other.
        lowest: `[groups, texts]` int32: the lowest position of each part; 0 for an empty one.
    """

    counts: NDArray[np.int64]
    positions: Ints
    lowest: Ints

    @classmethod
    def of(cls, texts: Sequence[TextRows], rules: Mapping[str, GroupRule]) -> _Parts:
        parts = [text.groups[name] for name in rules for text in texts]
        counts = np.asarray(list(map(len, parts)), np.int64)
        positions = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        shape = (len(rules), len(texts))
        return cls(counts.reshape(shape), positions, _reduced(np.minimum, positions, counts).reshape(shape))

    def fitting(self, texts: Sequence[TextRows], rules: Mapping[str, GroupRule]) -> NDArray[np.bool_]:
        """Return whether each text, `[texts]`, has the rows that each group requires, all of them within its tokens."""
        tokens = np.asarray([text.tokens for text in texts], np.int32)
        highest = _reduced(np.maximum, self.positions, self.counts.ravel()).reshape(self.counts.shape)
        fine: NDArray[np.bool_] = np.ones(len(texts), np.bool_)
        for number, rule in enumerate(rules.values()):
            # a row without a token is not shifted
            within = highest[number] + rule.shift < tokens
            within &= self.lowest[number] >= (NO_TOKEN if rule.may_lack_tokens else 0)
            filled = self.counts[number] > 0
            fine &= np.where(filled, within, True) if rule.may_be_empty else within & filled
        return fine

    def rows_and_groups(
        self, texts: Sequence[TextRows], rules: Mapping[str, GroupRule]
    ) -> tuple[Ints, Mapping[str, RowGroup]]:
        """Return the batch's token row of each row, and the groups; every part fits."""
        starts = np.asarray([text.start for text in texts], np.int32)
        added = np.concatenate([starts + np.int32(rule.shift) for rule in rules.values()])
        rows = self.positions + np.repeat(added, self.counts.ravel())
        lacking = np.zeros(0, np.int32)
        if self.lowest.min(initial=0) == NO_TOKEN:
            lacking = np.flatnonzero(self.positions == NO_TOKEN).astype(np.int32)
            rows[lacking] = 0
        offsets = np.zeros((len(rules), len(texts) + 1), np.int32)
        np.cumsum(self.counts, axis=1, out=offsets[:, 1:])
        groups, first = {}, 0
        for name, own, most in zip(rules, offsets, self.counts.max(axis=1, initial=0).tolist(), strict=True):
            end = first + int(own[-1])
            missing = lacking[(lacking >= first) & (lacking < end)] - np.int32(first) if len(lacking) else lacking
            groups[name] = RowGroup(first, own, missing, most)
            first = end
        return rows, groups


def _reduced(function: np.ufunc, values: Ints, counts: NDArray[np.int64]) -> Ints:
    """Reduce each part of ``values``; 0 for an empty part."""
    firsts = np.cumsum(counts) - counts
    if counts.all():
        return np.asarray(function.reduceat(values, firsts) if len(counts) else values, np.int32)
    found, filled = np.zeros(len(counts), np.int32), counts > 0
    if filled.any():
        found[filled] = function.reduceat(values, firsts[filled])
    return found
