"""Candidates to entities: the library's greedy search, in time that grows with the candidates and not with their square.

Two facts make that possible. What the search does with a span is decided when it meets the span's best class: whatever
stands in the way then still stands there for its other classes, and once the span is kept nothing that crosses it can
be. And spans are at most ``max_width`` words wide, so that looking at the words around a span finds all that cross it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# candidates that are faster looked at one by one
FEW = 64

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def keep(
    start: Ints,
    width: Ints,
    label: Ints,
    score: Floats,
    *,
    words: int,
    threshold: float,
    flat: bool,
    multi_label: bool,
    allowed: Collection[tuple[int, int]] | None = None,
) -> Ints:
    """Return which candidates are entities, as indices in the answer's order.

    A span is kept if its score is above ``threshold`` and nothing better is in its way: for ``flat`` whatever shares a
    word with it, else whatever shares some of its words and not all. Of a span's labels the best is kept, with
    ``multi_label`` all. Of equal scores the one with the lower start, width and label is the better.

    Args:
        start: `[candidates]`: the first word.
        width: `[candidates]`: how many words further the last word is.
        label: `[candidates]`: the label's number.
        score: `[candidates]`: the probability.
        words: How many words the text has; candidates that go beyond are none.
        threshold: Between 0 and 1; compared as float32, as the library's tensors are.
        flat: Entities share no words.
        multi_label: A span may have several labels.
        allowed: The only (first word, last word) that count; None for all.
    """
    if score.size <= FEW:
        places = list(zip(start.tolist(), width.tolist(), label.tolist(), score.tolist(), strict=True))
        return _keep_few(places, words, float(np.float32(threshold)), flat, multi_label, allowed)
    wanted = (score > np.float32(threshold)) & (start + width < words)
    if allowed is not None:
        wanted &= np.isin(start * words + width, [first * words + last - first for first, last in allowed])
    rows = np.flatnonzero(wanted)
    # by span and label first, as the library enumerates them, so that a stable sort settles ties as its does
    rows = rows[np.lexsort((label[rows], width[rows], start[rows]))]
    first = start[rows]
    entities: Ints = rows[search(first, first + width[rows], score[rows], words=words, flat=flat, several=multi_label)]
    return entities


def search(start: Ints, end: Ints, score: Floats, *, words: int, flat: bool, several: bool) -> Ints:
    """Return which candidates a greedy search keeps, as indices in the answer's order: by first word, the best first.

    Args:
        start: `[candidates]`: the first word.
        end: `[candidates]`: the last word.
        score: `[candidates]`: the probability; of equal ones the first candidate is the better.
        words: How many words the text has.
        flat: Entities share no words.
        several: A span may have several labels.
    """
    if not score.size:
        # texts without candidates are common, and what follows is not free for them
        return np.zeros(0, np.int64)
    _, span = np.unique(start * words + end, return_inverse=True)  # [candidates]: number of the span
    by_score = np.argsort(-score, kind="stable")
    _, best = np.unique(span[by_score], return_index=True)  # the first candidate of each span in order of score
    best = by_score[np.sort(best)]
    spans = zip(start[best].tolist(), end[best].tolist(), strict=True)
    chosen = np.fromiter((disjoint if flat else nested)(spans, words), bool, best.size)
    if several:
        free = np.zeros(best.size, bool)
        free[span[best[chosen]]] = True
        kept = by_score[free[span[by_score]]]
    else:
        kept = best[chosen]
    entities: Ints = kept[np.argsort(start[kept], kind="stable")]
    return entities


def _keep_few(
    places: Sequence[tuple[int, int, int, float]],
    words: int,
    threshold: float,
    flat: bool,
    multi_label: bool,
    allowed: Collection[tuple[int, int]] | None,
) -> Ints:
    """Do the same with (start, width, label, score) one by one: an array's operations cost more than single candidates."""
    order = sorted(
        (-score, start, width, label, row)
        for row, (start, width, label, score) in enumerate(places)
        if score > threshold and start + width < words and (allowed is None or (start, start + width) in allowed)
    )
    rows: dict[tuple[int, int], list[int]] = {}  # of each span, those of its best label first; the best span first
    for _, start, width, _, row in order:
        rows.setdefault((start, start + width), []).append(row)
    free = {span for span, is_free in zip(rows, (disjoint if flat else nested)(rows, words), strict=True) if is_free}
    if multi_label:
        kept = [row for _, start, width, _, row in order if (start, start + width) in free]
    else:
        kept = [rows[span][0] for span in rows if span in free]
    return np.array(sorted(kept, key=lambda row: places[row][0]), np.int64)


def disjoint(spans: Iterable[tuple[int, int]], words: int) -> Iterable[bool]:
    """Say of each span, best first, whether none of its words is taken; if so it takes them."""
    taken = bytearray(words)
    for begin, end in spans:
        free = taken.find(1, begin, end + 1) < 0
        if free:
            taken[begin : end + 1] = b"\x01" * (end + 1 - begin)
        yield free


def nested(spans: Iterable[tuple[int, int]], words: int) -> Iterable[bool]:
    """Say of each span, best first, whether no kept one crosses it; if so it is kept."""
    last = list(range(words))  # of the kept spans that begin at a word, the last word of the longest
    first = list(range(words))  # of the kept spans that end at a word, the first word of the longest
    for begin, end in spans:
        free = begin == end or (max(last[begin + 1 : end + 1]) <= end and min(first[begin:end]) >= begin)
        if free:
            last[begin] = max(last[begin], end)
            first[end] = min(first[end], begin)
        yield free
