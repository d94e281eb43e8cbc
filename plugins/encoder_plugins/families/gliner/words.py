"""Text to words, as the library's ``whitespace`` splitter makes them; ``stanza_words`` has the other splitter that is served.

Offsets count code points of the text as it was sent; nothing is normalised before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

# runs of word characters, also when hyphens join them; everything else that is not white space stands alone
_WORD = re.compile(r"\w+(?:-\w+)*|\S")

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

    def places(self, text: str, count: int | None = None) -> Sequence[tuple[int, int]]:
        """Return start and end of the first ``count`` words at least; ``text`` is the one that was split."""
        if self.known_places is not None:
            return self.known_places
        return [
            (start, start + len(word)) for start, word in zip(starts(text, self.words, count), self.words, strict=False)
        ]


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
