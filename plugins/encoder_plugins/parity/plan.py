"""Decide which requests are sent, and in which order. Pure.

Every case is sent at least four times: alone, in one request with others, at the same time as others, and in shuffled
batches at the same time. An engine that mixes requests, or whose answers depend on their neighbours, fails here. The
passes take the plugin's variants in turn; each variant gets a pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from encoder_plugins.artifact.reference import Case
from encoder_plugins.parity.protocol import Parity, Variant

CONCURRENCY = 16
BATCH = 8
# texts that every plugin takes in one request
MAX_TEXTS = 256


@dataclass(frozen=True, slots=True)
class Batch:
    """Cases that are sent in one request."""

    cases: tuple[Case, ...]
    variant: Variant


@dataclass(frozen=True, slots=True)
class Pass:
    """One way of sending all cases.

    Attributes:
        name: For findings.
        batches: The requests, in order.
        concurrency: Requests in flight at the same time.
    """

    name: str
    batches: tuple[Batch, ...]
    concurrency: int


def plan(parity: Parity, cases: Sequence[Case]) -> tuple[Pass, ...]:
    """Return the passes over all cases."""
    variants = list(parity.variants())
    taken = [variants[number % len(variants)] for number in range(4)]
    found = [
        _pass(parity, "alone", cases, taken[0], 1, most_cases=1),
        _pass(parity, "together", cases, taken[1], 1),
        _pass(parity, "concurrent", list(reversed(cases)), taken[2], CONCURRENCY, most_cases=1),
        _pass(parity, "shuffled", shuffled(cases), taken[3], CONCURRENCY, most_cases=BATCH),
    ]
    found += [_pass(parity, variant.name, cases, variant, CONCURRENCY, most_cases=BATCH) for variant in variants[4:]]
    return tuple(found)


def shuffled(cases: Sequence[Case]) -> list[Case]:
    """Return the cases in another order, the same one each time."""
    order = list(cases)
    # a fixed seed: the same artifact is always checked in the same order
    random.Random(len(cases)).shuffle(order)
    return order


def _pass(
    parity: Parity,
    name: str,
    cases: Iterable[Case],
    variant: Variant,
    concurrency: int,
    *,
    most_cases: int = MAX_TEXTS,
) -> Pass:
    """Sort cases into requests of one group each, of at most ``MAX_TEXTS`` texts unless one case alone has more."""
    fallback = parity.variants()[0]
    groups: dict[tuple[Variant, object], list[list[Case]]] = {}
    for case in cases:
        group = parity.group(case, variant)
        used = variant if group is not None else fallback
        parts = groups.setdefault((used, group if group is not None else parity.group(case, fallback)), [[]])
        texts = sum(map(parity.weight, parts[-1])) + parity.weight(case)
        if parts[-1] and (texts > MAX_TEXTS or len(parts[-1]) == most_cases):
            parts.append([])
        parts[-1].append(case)
    batches = tuple(Batch(tuple(part), used) for (used, _), parts in groups.items() for part in parts)
    return Pass(name, batches, concurrency)
