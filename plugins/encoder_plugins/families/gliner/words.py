"""Text to words, as the library's ``whitespace`` splitter makes them: the other splitters need tagger models of their own.

Offsets count code points of the text as it was sent; nothing is normalised before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

# runs of word characters, also when hyphens join them; everything else that is not white space stands alone
_WORD = re.compile(r"\w+(?:-\w+)*|\S")

SPLITTER = "whitespace"
"""What ``words_splitter_type`` has to say."""


def split(text: str) -> list[str]:
    """Return the words of ``text``, in order."""
    return _WORD.findall(text)


def starts(text: str, words: Sequence[str], count: int | None = None) -> list[int]:
    """Return where the first ``count`` words begin in ``text``; all of them without ``count``.

    Between two words is only white space and no word begins with any, so that the next occurrence of a word is the word.
    ``split`` finds no offsets itself: most words never need theirs, and finding them costs as much as the splitting.
    """
    found = []
    position = 0
    for word in islice(words, count):
        position = text.index(word, position)
        found.append(position)
        position += len(word)
    return found
