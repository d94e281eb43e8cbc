"""What every side of a comparison gets: the same texts and labels, from a seed. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import TypeVar

from tokenizers import Tokenizer

LABELS = (
    *("person", "company", "city", "date", "team", "country", "river", "language", "product", "event"),
    *("law", "number", "time", "money", "title", "book", "film", "song", "animal", "plant"),
    *("disease", "medicine", "building", "street", "planet", "sport", "food", "vehicle", "tool", "colour"),
)
THRESHOLD = 0.5
Item = TypeVar("Item")


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


@cache
def words() -> tuple[str, ...]:
    """Return English in its own order: the interpreter's documentation, which the built checkpoints' tokenizers have learned from.

    A tokenizer that knows no English makes two or three tokens of a word, and a comparison on that would be one of other texts.
    """
    return tuple(re.findall(r"[A-Za-z]{1,14}", " ".join(topics[name] for name in sorted(topics))))


def texts(count: int, length: int, seed: int = 1) -> list[str]:
    """Return so many different texts of so many words each: pieces of ``words``."""
    chance, known = random.Random(seed * 1_000_003 + length), words()
    begins = [chance.randrange(len(known) - length) for _ in range(count)]
    return [" ".join(known[begin : begin + length]) for begin in begins]


def texts_of_tokens(tokenizer: Tokenizer, count: int, tokens: int, seed: int = 1) -> list[str]:
    """Return so many different texts, each of so many tokens without those that the tokenizer puts around it.

    The tokens of a text that was cut inside a word may be one more or less.
    """
    found = []
    # a word has at least one token
    for text in texts(count, tokens, seed):
        _, end = tokenizer.encode(text, add_special_tokens=False).offsets[tokens - 1]
        found.append(text[:end].rstrip())
    return found


def parts(items: Sequence[Item], number: int) -> list[Sequence[Item]]:
    """Return so many items each; what is left over is left out."""
    return [items[start : start + number] for start in range(0, len(items) - number + 1, number)]


def labels(count: int) -> list[str]:
    """Return the first so many labels."""
    if count > len(LABELS):
        raise ValueError(f"there are {len(LABELS)} labels, and {count} were wanted")
    return list(LABELS[:count])
