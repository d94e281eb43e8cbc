"""Which of overlapping spans are kept: the policies of gliner2, in time that grows with the spans and not with their square.

All policies rank spans by score, then by the lower start, then by the lower end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from typing import Literal, NamedTuple

from encoder_plugins.families.gliner import decode

Policy = Literal["greedy", "allow", "nested", "disallow", "longest"]

POLICIES: Mapping[str, Policy] = {
    "allow": "allow",
    "all": "allow",
    "none": "allow",
    "nested": "nested",
    "allow_nested": "nested",
    "flat": "disallow",
    "disallow": "disallow",
    "no_overlap": "disallow",
    "non_overlapping": "disallow",
    "longest": "longest",
    "keep_longest": "longest",
}
"""The library's names; case and the choice of ``-`` or ``_`` have no meaning. Without a name it searches greedily."""

BEST_FIRST: Collection[Policy] = ("greedy", "allow", "nested")
"""Policies that keep the span which ranks best, whatever the others are."""


def policy_of(name: str | None, *, default: Policy) -> Policy | None:
    """Return the policy that ``name`` means, ``default`` for None, and None for an unknown name."""
    return default if name is None else POLICIES.get(name.strip().lower().replace("-", "_"))


def resolve(starts: Sequence[int], ends: Sequence[int], scores: Sequence[float], policy: Policy) -> list[int]:
    """Return the spans that are kept, as indices, the best first.

    Args:
        starts: Where each span begins, in any unit.
        ends: Where it ends, exclusive, in the same unit.
        scores: Its score.
        policy: ``greedy`` keeps a span if it shares nothing with a better one; ``nested`` if it crosses no better one, where one
            may lie within the other; ``disallow`` keeps the set without overlaps that has the largest sum of scores, of equal
            sums the one with more spans, then the one that ranks better; ``longest`` drops what lies strictly within another
            span; ``allow`` keeps all. Spans with equal bounds count once.
    """
    ranked = sorted(range(len(scores)), key=lambda row: (-scores[row], starts[row], ends[row]))
    distinct: dict[tuple[int, int], int] = {}
    for row in ranked:
        distinct.setdefault((starts[row], ends[row]), row)
    rows = list(distinct.values())
    if policy == "allow" or len(rows) < 2:
        return rows
    if policy == "longest":
        return _longest(rows, starts, ends)
    if policy == "disallow":
        return _largest_sum(rows, starts, ends, scores)
    cells = {
        bound: cell for cell, bound in enumerate(sorted({bound for row in rows for bound in (starts[row], ends[row])}))
    }
    spans = [(cells[starts[row]], cells[ends[row]] - 1) for row in rows]
    keep = decode.disjoint if policy == "greedy" else decode.nested
    return list(compress(rows, keep(spans, len(cells))))


def _longest(rows: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the rows that do not lie strictly within another one."""
    kept = set()
    furthest = -1
    for row in sorted(rows, key=lambda row: (starts[row], -ends[row])):
        # what comes before begins earlier, or at the same place and ends later
        if ends[row] > furthest:
            kept.add(row)
            furthest = ends[row]
    return [row for row in rows if row in kept]


def _largest_sum(rows: Sequence[int], starts: Sequence[int], ends: Sequence[int], scores: Sequence[float]) -> list[int]:
    """Return the rows of the set without overlaps that has the largest sum of scores.

    Sums are added in the library's order, because ties are decided by exact equality.
    """
    rank = {row: place for place, row in enumerate(rows)}
    order = sorted(rows, key=lambda row: (ends[row], starts[row], -scores[row]))
    ranks = [rank[row] for row in order]
    behind = [ends[row] for row in order]
    best = [_Set(0.0, 0, -1, 0)]  # of the first spans by end: none of them, one, two, ...
    for place, row in enumerate(order):
        before = bisect_right(behind, starts[row], 0, place)
        added = _Set(best[before].score + scores[row], best[before].size + 1, place, before)
        without = best[place]
        tied = added[:2] == without[:2]
        better = _ranks_better(added, without, best, ranks) if tied else added[:2] > without[:2]
        best.append(added if better else without)
    kept = []
    chosen = best[-1]
    while chosen.size:
        kept.append(order[chosen.last])
        chosen = best[chosen.before]
    return sorted(kept, key=rank.__getitem__)


class _Set(NamedTuple):
    """A set of spans.

    Attributes:
        score: The sum of their scores.
        size: The number of spans.
        last: The last of them, by its place among all spans.
        before: Which best set holds the others.
    """

    score: float
    size: int
    last: int
    before: int


def _ranks_better(one: _Set, other: _Set, best: Sequence[_Set], ranks: Sequence[int]) -> bool:
    """Return whether, of two sets of one size, ``one`` has the best-ranked of the spans that only one of them has."""
    least = [len(ranks)] * 2
    # a set is known by its last span: what came before was the best then, and the same for all
    while one.last != other.last:
        if one.last > other.last:
            least[0] = min(least[0], ranks[one.last])
            one = best[one.before]
        else:
            least[1] = min(least[1], ranks[other.last])
            other = best[other.before]
    return least[0] < least[1]
