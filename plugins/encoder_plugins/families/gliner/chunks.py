"""Texts longer than the model takes, read in overlapping parts. Pure.

- A part ends behind the last sentence that ends in its second half, else where the model's limit is.
- The next part begins ``overlap`` words before that end, or at most as many again, where a sentence begins there. No
  entity is wider than the overlap, so that each lies within a part as a whole.
- A span that lies within several parts counts in one of them only: where it has most words around it on the side where it
  has fewer; of equal parts, the first. The borders of the text itself count as endless.
- What counts is decoded once for the whole text, so that flat entities are flat across the parts, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_ENDS = frozenset(".!?…。！？｡؟۔।॥։።")
_CLOSERS = frozenset("\"'”’»›)]}」』）】")

Ints = NDArray[np.int64]


class Chunk(NamedTuple):
    """The words from ``begin`` to before ``end``."""

    begin: int
    end: int


class WordsTooLong(ValueError):  # noqa: N818 - what is wrong with what a client sent
    """Words that the model does not take together, although they are no more than two entities."""

    def __init__(self, chunk: Chunk, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.chunk = chunk
        self.tokens = tokens


class TooManyParts(ValueError):  # noqa: N818 - what is wrong with what a client sent
    """A text with more parts than a request may have; ``words`` is how many words were in those that it may have."""

    def __init__(self, words: int) -> None:
        super().__init__(f"{words} words")
        self.words = words


def sentence_ends(words: Sequence[str], lines: Sequence[int] = ()) -> list[int]:
    """Return the words behind which a sentence ends, as the number of the next word.

    Args:
        words: The words of the text.
        lines: Where lines begin: numbers of words with a line break before them.
    """
    ends = set(lines)
    ending = False
    for position, word in enumerate(words):
        if word in _ENDS:
            ending = True
        elif not (ending and word in _CLOSERS):
            if ending:
                ends.add(position)
            ending = False
    return sorted(ends)


def line_starts(text: str, starts: Sequence[int]) -> list[int]:
    """Return the words that have a line break between them and the word before; ``starts`` are the words' offsets."""
    found = []
    for position, (before, start) in enumerate(pairwise(starts), 1):
        if "\n" in text[before:start]:
            found.append(position)
    return found


def plan(
    lengths: Sequence[int],
    *,
    most_words: int,
    most_tokens: int,
    overlap: int,
    most_parts: int,
    borders: Sequence[int] = (),
) -> list[Chunk]:
    """Return the parts of a text whose words have ``lengths`` tokens; one part where all of them fit.

    Raises:
        WordsTooLong: Somewhere not more words fit than two parts have to share.
        TooManyParts: There are more than ``most_parts``.
    """
    words = len(lengths)
    until = np.array([0, *accumulate(lengths)])  # [words + 1]: tokens before each word
    sentences = np.array([*borders, words])

    def limit(begin: int) -> int:
        by_tokens = int(np.searchsorted(until, until[begin] + most_tokens, side="right")) - 1
        return min(begin + most_words, by_tokens)

    chunks: list[Chunk] = []
    begin = end = 0
    while (furthest := limit(begin)) < words:
        if furthest - begin <= overlap:
            too_long = Chunk(begin, min(begin + overlap + 1, words))
            raise WordsTooLong(too_long, int(until[too_long.end] - until[too_long.begin]))
        # behind the end of the part before, so that each part brings something new
        earliest = max(begin + (furthest - begin) // 2, begin + overlap, end) + 1
        end = _last(sentences, earliest, furthest) or furthest
        chunks.append(Chunk(begin, end))
        if len(chunks) == most_parts:
            raise TooManyParts(end)
        begin = _last(sentences, max(end - 2 * overlap, begin + 1), end - overlap)
        if begin == 0 or limit(begin) <= end:
            begin = end - overlap
    return [*chunks, Chunk(begin, words)]


def owned(chunks: Sequence[Chunk], number: int, start: Ints, last: Ints) -> NDArray[np.bool_]:
    """Return which spans of a part count in it, and not in another one.

    Args:
        chunks: The parts of the text.
        number: Which of them.
        start: `[spans]`: the first word, counted in the text.
        last: `[spans]`: the last word, counted in the text.
    """
    own = _around(chunks, number, start, last)
    mine = np.ones(start.shape, bool)
    for before in takewhile(lambda other: chunks[other].end > chunks[number].begin, range(number - 1, -1, -1)):
        mine &= own > _around(chunks, before, start, last)
    for behind in takewhile(lambda other: chunks[other].begin < chunks[number].end, range(number + 1, len(chunks))):
        mine &= own >= _around(chunks, behind, start, last)
    return mine


def _around(chunks: Sequence[Chunk], number: int, start: Ints, last: Ints) -> NDArray[np.float64]:
    """Return the words around spans on their poorer side; -1 for spans that are not in the part as a whole."""
    begin, end = chunks[number]
    before = np.where(begin == 0, np.inf, start - begin)
    behind = np.where(end == chunks[-1].end, np.inf, end - 1 - last)
    inside = (start >= begin) & (last < end)
    return np.where(inside, np.minimum(before, behind), -1.0)


def _last(sorted_values: Ints, low: int, high: int) -> int:
    """Return the last value from ``low`` to ``high``, both included; 0 for none."""
    place = int(np.searchsorted(sorted_values, high, side="right")) - 1
    return int(sorted_values[place]) if place >= 0 and sorted_values[place] >= low else 0
