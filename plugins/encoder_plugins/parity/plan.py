"""Decide which requests are sent, and in which order. Pure.

Every case is sent at least four times: alone, in one request with others, at the same time as others, and in shuffled
batches at the same time. An engine that mixes requests, or whose answers depend on their neighbours, fails here. The
passes take the plugin's variants in turn; each variant gets a pass.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encoder_plugins.artifact.reference import Case
from encoder_plugins.parity.protocol import Parity, Variant

CONCURRENCY = 16
BATCH = 8
# texts that every plugin takes in one request, unless its server was started with a lower limit
MAX_TEXTS = 256
# the limit that a list of a request is held to, where it is not called like the list
LISTS = {"input": "texts"}
# fields that hold images, which no limit of characters counts
IMAGES = frozenset({"image", "images"})
# fields of a case whose value says what it tests; of the others it is whether they are set
CHOICES = frozenset({"input_type", "measures"})
# what a client adds to a body: the model's name
ENVELOPE_BYTES = 512


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


def plan(parity: Parity, cases: Sequence[Case], limits: Mapping[str, int] | None = None) -> tuple[Pass, ...]:
    """Return the passes over all cases.

    Args:
        parity: The plugin's side.
        cases: The cases; ``answerable`` leaves out those that no server with these limits takes.
        limits: The limits that the server was started with, where they differ from the plugin's.
    """
    variants = list(parity.variants())
    taken = [variants[number % len(variants)] for number in range(4)]
    bounds = limits or {}
    found = [
        _pass(parity, "alone", cases, taken[0], 1, bounds, most_cases=1),
        _pass(parity, "together", cases, taken[1], 1, bounds),
        _pass(parity, "concurrent", list(reversed(cases)), taken[2], CONCURRENCY, bounds, most_cases=1),
        _pass(parity, "shuffled", shuffled(cases), taken[3], CONCURRENCY, bounds, most_cases=BATCH),
    ]
    found += [
        _pass(parity, variant.name, cases, variant, CONCURRENCY, bounds, most_cases=BATCH) for variant in variants[4:]
    ]
    return tuple(found)


def answerable(parity: Parity, cases: Sequence[Case], limits: Mapping[str, int]) -> list[Case]:
    """Return the cases that a server with these limits takes when they are sent alone."""
    first = parity.variants()[0]
    return [case for case in cases if within(parity.body([case], first), limits)]


def lacking(recorded: Sequence[Case], sent: Sequence[Case]) -> str | None:
    """Return why the cases that are sent are too few for a verdict; None if they are enough.

    Half of the cases must be sent, and each kind that was recorded: a server whose limits let one short text through would
    pass otherwise.

    Args:
        recorded: The cases of the artifact.
        sent: Those of them that keep the server's limits.
    """
    share = f"the server's limits let {len(sent)} of {len(recorded)} cases through"
    if 2 * len(sent) < len(recorded):
        return f"{share}; at least half must be sent"
    missing = set().union(*map(kinds, recorded)) - set().union(*map(kinds, sent))
    return f"{share}, and none with {', '.join(sorted(missing))}" if missing else None


def kinds(case: Case) -> frozenset[str]:
    """Return what a case tests: each field that it sets, and the values of switches and choices."""
    return frozenset(
        f"{name} {json.dumps(value)}" if isinstance(value, bool) or name in CHOICES else name
        for name, value in case.items()
        if name != "id" and value is not None and value != []
    )


def within(body: Mapping[str, Any], limits: Mapping[str, int]) -> bool:
    """Return whether a request keeps the limits that can be seen in it; one that is not given bounds nothing.

    Args:
        body: The body, without the model's name.
        limits: Limits by name: ``body_bytes``, ``characters``, ``characters_per_text``, and those of lists, which are called
            like the lists.
    """
    data = body.get("data", body)
    texts = list(_texts(data))
    sizes = {
        "characters_per_text": max(map(len, texts), default=0),
        "characters": sum(map(len, texts)),
        "body_bytes": len(json.dumps(body)) + ENVELOPE_BYTES,
        **{LISTS.get(name, name): len(value) for name, value in data.items() if isinstance(value, list)},
    }
    return all(size <= limits[name] for name, size in sizes.items() if name in limits)


def _texts(value: object) -> Iterator[str]:
    """Return every text below a value, names of fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if name not in IMAGES:
                yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


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
    limits: Mapping[str, int],
    *,
    most_cases: int = MAX_TEXTS,
) -> Pass:
    """Sort cases into requests of one group each, of at most ``MAX_TEXTS`` texts unless one case alone has more.

    A request keeps ``limits``, too, unless one case alone does not.
    """
    fallback = parity.variants()[0]
    groups: dict[tuple[Variant, object], list[list[Case]]] = {}
    for case in cases:
        group = parity.group(case, variant)
        used = variant if group is not None else fallback
        parts = groups.setdefault((used, group if group is not None else parity.group(case, fallback)), [[]])
        texts = sum(map(parity.weight, parts[-1])) + parity.weight(case)
        full = texts > MAX_TEXTS or len(parts[-1]) == most_cases
        if parts[-1] and (full or (limits and not within(parity.body([*parts[-1], case], used), limits))):
            parts.append([])
        parts[-1].append(case)
    batches = tuple(Batch(tuple(part), used) for (used, _), parts in groups.items() for part in parts)
    return Pass(name, batches, concurrency)
