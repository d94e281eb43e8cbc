"""Text to words, as the library's ``whitespace`` splitter makes them; ``stanza_words`` has the other splitter that is served.

Offsets count code points of the text as it was sent; nothing is normalised before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

# runs of word characters, also when hyphens join them; everything else that is not white space stands alone
_WORD = re.compile(r"\w+(?:-\w+)*|\S")
# by code point, whether it is no white space; the last one stands for all beyond
_LETTERS = np.array([not chr(code).isspace() for code in range(0x3002)])

SPLITTER = "whitespace"
"""What ``words_splitter_type`` has to say."""


REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "stanza": "gliner guesses each text's language and downloads a model for it at that moment, so that answers depend on"
        " what could be downloaded. To pin the models, set spec.prepare.parameters.wordsSplitter: stanza with languages, and"
        " source.auxiliary with stanfordnlp/stanza-LANGUAGE for each",
        "hanlp": "gliner downloads its model when it is loaded, and no source of the preparation pins it",
        "universal": "it needs the data of seven other splitters",
        "camel": "its data are installed beside the package by hand, and no source of the preparation pins them",
        "jieba": "its time grows with the square of a run of unknown characters: minutes for the longest text that is accepted",
        "janome": "its dictionary has 113 MB, and every image of GLiNER would carry it",
        "mecab": "its dictionary would be in every image of GLiNER",
        "spacy": "it would bring 37 packages into every image of GLiNER",
        "hindi": "it would bring 30 packages into every image of GLiNER",
    }
)
"""The library's other splitters, and why each is not served."""


def advice(splitter: object) -> str | None:
    """Return what to do about a splitter of the library that is not served; None for what the library does not know."""
    if not isinstance(splitter, str) or (reason := REFUSED.get(splitter)) is None:
        return None
    return (
        f"{splitter}: {reason}. To serve these weights on words as gliner finds them by default, set"
        " spec.prepare.parameters.wordsSplitter: whitespace (--parameter wordsSplitter=whitespace)"
    )


@dataclass(frozen=True, slots=True)
class Split:
    """The words of a text.

    Attributes:
        words: As the model gets them.
        known_places: Start and end of each in the text; None where each is the next occurrence of its letters.
        language: Whose tokenizer found them; None for a splitter that is the same for all languages.
        fallback: Whether that is not the text's own language, but the one that other languages get.
    """

    words: list[str]
    known_places: list[tuple[int, int]] | None = None
    language: str | None = None
    fallback: bool = False

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each word; ``text`` is the one that was split."""
        every = range(len(self.words))
        return self.runs(text, every, every)

    def runs(self, text: str, first: Sequence[int], last: Sequence[int]) -> list[tuple[int, int]]:
        """Return start and end of each run of words, from its ``first`` to its ``last``; ``text`` is the one that was split."""
        if self.known_places is not None:
            places = self.known_places
            return [(places[begin][0], places[end][1]) for begin, end in zip(first, last, strict=True)]
        begins, ends = _places(text, self.words)
        return list(zip(begins[first].tolist(), ends[last].tolist(), strict=True))


def split(text: str) -> list[str]:
    """Return the words of ``text``, in order."""
    return _WORD.findall(text)


def starts(text: str, words: Sequence[str]) -> list[int]:
    """Return where each of the words begins in ``text``."""
    begins: list[int] = _places(text, words)[0].tolist()
    return begins


def _places(text: str, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each of the words begins, and ends.

    Words are all of a text but its white space, so that a word begins at the letter whose number is that of all letters before.
    ``split`` finds no offsets itself: most words never need theirs.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    letters = _LETTERS.take(codes, mode="clip").nonzero()[0]
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    behind = lengths.cumsum()
    return letters[behind - lengths], letters[behind - 1] + 1
