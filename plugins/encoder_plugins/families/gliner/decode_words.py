"""Scored words of token-level models to spans, as the library's ``TokenDecoder`` makes them, without its loop over all pairs.

A span of a label begins at a word whose score as start is above the threshold, ends at one whose score as end is, and each of its words has
a score as inside of at least the threshold. Its score is the lowest of all these. So the spans of a label lie within runs of words that
may be inside, and the lowest score of any part of a run comes from a table of powers of two.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class TooManySpans(ValueError):  # noqa: N818 - what is wrong with what a client sent
    """More spans than a request may have."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} spans")
        self.count = count


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans in the order in which the library enumerates them: by first word, label and last word.

    Attributes:
        start: `[spans]`: the first word.
        end: `[spans]`: the last word.
        label: `[spans]`: the label's number.
        score: `[spans]`: the probability.
    """

    start: Ints
    end: Ints
    label: Ints
    score: Floats


def spans(
    word: Ints,
    label: Ints,
    scores: Floats,
    *,
    words: int,
    threshold: float,
    most: int,
    allowed: Collection[tuple[int, int]] | None = None,
) -> Spans:
    """Return the spans of a text.

    Args:
        word: `[pairs]`: the word of each scored pair, each pair once; those without any chance to be inside may be missing.
        label: `[pairs]`: its label.
        scores: `[pairs, 3]`: probabilities of start, end and inside.
        words: How many words the text has; pairs beyond are none.
        threshold: Between 0 and 1. Starts and ends are above it in float32, as the library's tensors are compared; insides reach it in
            float64, as the library compares numbers.
        most: How many spans there may be.
        allowed: The only (first word, last word) that count; None for all.

    Raises:
        TooManySpans: There are more than ``most`` without ``allowed``, and with it more combinations of one of these and a label.
    """
    wanted = (scores[:, 2].astype(np.float64) >= threshold) & (word < words)
    rows = np.flatnonzero(wanted)
    rows = rows[np.lexsort((word[rows], label[rows]))]
    at, of, score = word[rows], label[rows], scores[rows]
    begins, ends = (score[:, column] > np.float32(threshold) for column in (0, 1))
    run = runs(at, of)
    found = Pairs.of(begins, ends, run)
    permitted = int(found.counts.sum())
    # of both ways to the allowed ones, that with fewer pairs to try: the scores may permit few of them, or many others
    if allowed is not None and len(allowed) * len(np.unique(of)) <= min(permitted, most):
        first, last = _allowed_pairs(at, of, words, allowed)
        kept = begins[first] & ends[last] & (run[first] == run[last])
        first, last = first[kept], last[kept]
    else:
        if permitted > most:
            raise TooManySpans(permitted)
        first, last = found.rows()
        if allowed is not None:
            keys = [begin * words + end for begin, end in allowed if end < words]
            kept = np.isin(at[first] * words + at[last], np.asarray(keys, np.int64))
            first, last = first[kept], last[kept]
    lowest = np.minimum(_lowest(score[:, 2], first, last), np.minimum(score[first, 0], score[last, 1]))
    order = np.lexsort((at[last], of[first], at[first]))
    first, last = first[order], last[order]
    return Spans(at[first], at[last], of[first], lowest[order])


def runs(at: Ints, of: Ints) -> Ints:
    """Return the number of each row's run, `[rows]`: a run is a sequence of neighbouring words with the same label.

    Args:
        at: `[rows]`: the word.
        of: `[rows]`: its label; rows are in order of labels, and then of words.
    """
    number: Ints = np.cumsum(np.concatenate(([True], (np.diff(of) != 0) | (np.diff(at) != 1)))[: len(at)])
    return number


@dataclass(frozen=True, slots=True)
class Pairs:
    """Every start with every end at or behind it in the same run.

    Attributes:
        first: `[starts]`: the row of each start.
        lowest: `[starts]`: the number of the first end of each, among ``last``.
        counts: `[starts]`: how many ends each has.
        last: `[ends]`: the row of each end.
    """

    first: Ints
    lowest: Ints
    counts: Ints
    last: Ints

    @classmethod
    def of(cls, begins: NDArray[np.bool_], ends: NDArray[np.bool_], run: Ints) -> Pairs:
        """Count them, for rows that are starts, and ends, and belong to runs `[rows]`."""
        first, last = np.flatnonzero(begins), np.flatnonzero(ends)
        lowest = np.searchsorted(last, first)
        counts = np.searchsorted(last, np.searchsorted(run, run[first], side="right")) - lowest
        return cls(first, lowest, counts, last)

    def rows(self, chosen: slice = slice(None)) -> tuple[Ints, Ints]:
        """Return the rows of the start and the end of each pair; of some of the starts only, if they are ``chosen``."""
        first, lowest, counts = self.first[chosen], self.lowest[chosen], self.counts[chosen]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(first, counts), self.last[np.repeat(lowest, counts) + within]


def _allowed_pairs(at: Ints, of: Ints, words: int, allowed: Collection[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Return the rows of the first and the last word of each allowed span, with every label that has both."""
    labels = np.unique(of)
    given = np.asarray(sorted(span for span in allowed if span[1] < words), np.int64).reshape(-1, 2)
    keys = of * words + at  # ascending
    wanted = labels[:, None] * words
    rows = [np.searchsorted(keys, (wanted + given[None, :, side]).ravel()) for side in (0, 1)]
    present = np.ones(rows[0].shape, bool)
    for side, found in enumerate(rows):
        within = found < len(keys)
        present &= within
        present[within] &= keys[found[within]] == (wanted + given[None, :, side]).ravel()[within]
    return rows[0][present], rows[1][present]


def _lowest(values: Floats, first: Ints, last: Ints) -> Floats:
    """Return the lowest of ``values`` from ``first`` to ``last``, both included, for each pair of rows."""
    if not first.size:
        return np.zeros(0, np.float32)
    length = last - first + 1
    level = np.frexp(length)[1] - 1  # the largest power of two that is not longer
    table = [values]
    for half in (1 << np.arange(int(level.max()))).tolist():
        before = table[-1]
        # what would reach beyond the last value is never read
        table.append(np.minimum(before, np.concatenate((before[half:], before[:half]))))
    stacked = np.stack(table)
    found: Floats = np.minimum(stacked[level, first], stacked[level, last + 1 - (1 << level)])
    return found
