"""The texts of a request, checked in one place for all plugins. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.serving.limits import RequestLimits

# control characters that no text needs, and that usually mean that something binary was sent by mistake
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimits(RequestLimits):
    """The limits of requests that hold texts; ``encoder_plugins.plugin.TEXT_LIMITS`` describes them."""

    texts: int
    characters_per_text: int
    characters: int


def texts_of(
    text: str | None, texts: Sequence[str] | None, limits: TextLimits, *, anything: bool = False
) -> Sequence[str]:
    """Return the texts of a request with the fields ``text`` and ``texts``, of which it must have one.

    Args:
        text: The field ``data.text``.
        texts: The field ``data.texts``.
        limits: What they are held to.
        anything: Whether empty texts and control characters are texts, too.

    Raises:
        InvalidRequest: There is no text, or they exceed a limit, or one of them is not a text.
    """
    if text is not None and texts is not None:
        raise InvalidRequest("text and texts are both there; send one of them", param="data.texts")
    if text is not None:
        return check_texts([text], limits, path="data.text", single=True, anything=anything)
    if texts is None:
        raise InvalidRequest("neither text nor texts is there; send one of them", param="data.text")
    return check_texts(texts, limits, path="data.texts", anything=anything)


def check_texts(
    texts: Sequence[str], limits: TextLimits, *, path: str, single: bool = False, anything: bool = False
) -> Sequence[str]:
    """Return ``texts`` if they keep the limits.

    Args:
        texts: The texts.
        limits: What they are held to.
        path: The field that holds them.
        single: Whether the field holds the only text itself, instead of a list.
        anything: Whether empty texts and control characters are texts, too.

    Raises:
        InvalidRequest: They exceed a limit, or one of them is not a text.
    """
    if not texts:
        raise InvalidRequest("the list is empty; it takes at least one text", param=path)
    if len(texts) > limits.texts:
        raise InvalidRequest(f"{len(texts)} texts; the limit is {limits.texts}", param=path)
    for position, text in enumerate(texts):
        if problem := _problem(text, limits, anything=anything):
            raise InvalidRequest(problem, param=path if single else f"{path}[{position}]")
    if (total := sum(map(len, texts))) > limits.characters:
        raise InvalidRequest(f"{total} characters in all; the limit is {limits.characters} a request", param=path)
    return texts


def _problem(text: str, limits: TextLimits, *, anything: bool) -> str | None:
    if len(text) > limits.characters_per_text:
        return f"{len(text)} characters; the limit is {limits.characters_per_text} a text"
    if anything:
        return None
    if not text:
        return "the text is empty"
    if control := _CONTROLS.search(text):
        return (
            f"the control character U+{ord(control[0]):04X} at position {control.start()}; texts may hold"
            " tab, line feed and carriage return only"
        )
    return None
