"""What every side of a comparison gets: the same texts and labels, from a seed. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

# short English words: each is one or two tokens in every tokenizer of the comparison
WORDS = (
    *("the", "river", "carried", "small", "boats", "past", "quiet", "gardens", "while", "people", "talked", "about"),
    *("Maria", "Paris", "London", "Apple", "Berlin", "Tim", "Cook", "July", "Monday", "bank", "city", "team"),
    *("weather", "music", "bread", "and", "distant", "cities", "of", "Anna", "in", "March", "she", "was", "born"),
)
LABELS = (
    *("person", "company", "city", "date", "team", "country", "river", "language", "product", "event"),
    *("law", "number", "time", "money", "title", "book", "film", "song", "animal", "plant"),
    *("disease", "medicine", "building", "street", "planet", "sport", "food", "vehicle", "tool", "colour"),
)
THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Shape:
    """One row of a table.

    Attributes:
        words: Of each text.
        labels: Of each text.
    """

    words: int
    labels: int

    def __str__(self) -> str:
        return f"{self.words} words, {self.labels} labels"


def texts(count: int, words: int, seed: int = 1) -> list[str]:
    """Return so many different texts of so many words."""
    chance = random.Random(seed * 1_000_003 + words)
    return [" ".join(chance.choices(WORDS, k=words)) for _ in range(count)]


def labels(count: int) -> list[str]:
    """Return the first so many labels."""
    if count > len(LABELS):
        raise ValueError(f"there are {len(LABELS)} labels, and {count} were wanted")
    return list(LABELS[:count])
