"""Text to words, as gliner2's ``whitespace`` splitter makes them of the text that its processor has ended with a full stop.

Offsets count code points of the text as it was sent: words are lower-cased one by one, after they were found.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Unicode marks (Mn, Mc, Me) belong to words, as do the zero width joiner and non-joiner: \w lacks them
_MARKS = "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M")
_LETTER = rf"[\w{_MARKS}\u200c\u200d]"
_WORD = re.compile(rf"(?P<url>https?://\S+|www\.\S+)|@[a-z0-9_]+|{_LETTER}+(?:[-_]{_LETTER}+)*|\S", re.IGNORECASE)
_LOCAL = re.compile(r"[a-z0-9._%+-]+", re.IGNORECASE)
_DOMAIN = re.compile(r"[a-z0-9.-]+\.[a-z]{2,}", re.IGNORECASE)
_ENDS = (".", "!", "?")


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text.

    Attributes:
        tokens: Each word in lower case.
        starts: The first character of each.
        ends: The character behind each; one behind the text where the word holds the full stop that was appended.
    """

    tokens: Sequence[str]
    starts: Sequence[int]
    ends: Sequence[int]

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, count: int) -> Words:
        """Return the first ``count`` words."""
        return Words(self.tokens[:count], self.starts[:count], self.ends[:count])


def ended(text: str) -> str:
    """Return ``text`` with the full stop that the library appends where there is no ``.``, ``!`` or ``?`` at its end."""
    return text if text.endswith(_ENDS) else f"{text}."


def split(text: str) -> Words:
    """Return the words of ``text`` as it is."""
    spans = list(_with_addresses(text) if "@" in text else (match.span() for match in _WORD.finditer(text)))
    return Words(
        [text[start:end].lower() for start, end in spans], [start for start, _ in spans], [end for _, end in spans]
    )


def _with_addresses(text: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each word of a text that may hold e-mail addresses.

    The library has one regular expression for everything, which takes a minute for 200 000 characters like ``a.a.a.``: it looks
    for an ``@`` from each of them. An address begins where a word can begin and reaches to the end of the run before its ``@``,
    so that one pass over all runs finds the same.
    """
    runs = [run.span() for run in _LOCAL.finditer(text) if text.startswith("@", run.end())]
    addresses = [(*run, domain.end()) for run in runs if (domain := _DOMAIN.match(text, run[1] + 1))]
    position = 0
    for begin, at, end in addresses:
        if position >= at:
            continue
        for match in _WORD.finditer(text, position):
            position = match.end()
            if begin <= match.start() < at and match["url"] is None:
                position = end
                yield match.start(), end
                break
            yield match.span()
            if position >= at:
                break
    yield from (match.span() for match in _WORD.finditer(text, position))
