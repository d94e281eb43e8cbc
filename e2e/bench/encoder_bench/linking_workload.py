"""What all sides of a linking comparison get, and a line of its table. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from encoder_bench import workload

COUNTED = 16
ROTATING = 8
SETS = ("same", "rotating", "cold")
# the labels of "same", which the model was prepared with, and requests name
NAMED = "named"
# labels that come before one comes again: more than the cache holds; and texts of all requests together, which are kept in memory
COLD, MOST_TEXTS = 120_000, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        side: Who, and how.
        words: Of each text.
        labels: Of each text.
        sets: Which sets of labels come: one of `SETS`, `named`, or `own` where each text has its own.
        rate: Texts a second.
        entities: Entities of a text, on average.
        notes: Further figures.
    """

    side: str
    words: int
    labels: int
    sets: str
    rate: float
    entities: float
    notes: str = ""


def label_sets(count: int, sets: str) -> list[list[str]]:
    """Return sets of so many different labels of some words each: one, eight, or so many that the cache holds none when it comes again."""
    number = {"same": 1, "rotating": ROTATING, "cold": max(2, COLD // count)}[sets]
    seed = {"same": 11, "rotating": 12, "cold": 13}[sets]
    # a number makes each of them another text
    drawn = workload.texts(count * number, 4, seed)
    labels = [f"{text} {sets[0]}{place}" for place, text in enumerate(drawn)]
    return [labels[start : start + count] for start in range(0, len(labels), count)]


def set_name(count: int) -> str:
    """Return what the label set of so many labels is called."""
    return f"same-{count}"


def fields(count: int, sets: str) -> list[Mapping[str, object]]:
    """Return what requests have as their labels, one after the other: the labels of each set, or a set's name."""
    if sets == NAMED:
        return [{"label_set": set_name(count)}]
    return [{"labels": labels} for labels in label_sets(count, sets)]


def candidates(texts: int, count: int) -> list[list[str]]:
    """Return so many candidates of each of so many texts."""
    sets = label_sets(count, "cold")
    return [sets[number % len(sets)] for number in range(texts)]


def mentions(text: str) -> list[dict[str, int]]:
    """Return the spans of a text that may be entities: every eighth word, each second time with the word behind it."""
    words = list(re.finditer(r"[A-Za-z]+", text))
    firsts = range(3, len(words) - 1, 8)
    return [
        {"start": words[first].start(), "end": words[first + number % 2].end()} for number, first in enumerate(firsts)
    ]
