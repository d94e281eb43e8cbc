"""What a client of a GLiNER plugin may ask, and what of it can be checked without the checkpoint's tokenizer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.serving.http.body import Data
from encoder_plugins.serving.limits import Limits

LABELS = 1_000
"""Labels of one text, and different labels of one request."""
LABEL_CHARACTERS = 256
"""Characters of one label."""
PROMPTS = 1_024
"""Prompts that one request may become: one for each text, or for each chunk of one."""
CLASS_PROBABILITIES = 5
"""How many labels ``class_probs`` holds at most."""

LOW_THRESHOLD = 0.1
"""Below it, almost any pair of a span and a label can be a candidate, and they are counted before."""
CANDIDATES = 8 * 1024 * 1024
"""Pairs of a span and a label in a request with a low threshold: 134 MB between two processes, if all are candidates."""
ENTITIES = 100_000
"""Entities in one answer."""

Labels = Annotated[list[str], Field(fail_fast=True)]


class CharacterSpan(Data):
    """A part of a text."""

    start: Annotated[int, Field(ge=0)]
    """The first character."""
    end: Annotated[int, Field(ge=0)]
    """The character behind the last one."""


class Request(Data):
    """The ``data`` of a request: texts, the labels to look for in them, and how to choose among what is found."""

    text: str | None = None
    """One text. Either this or ``texts``."""
    texts: Annotated[list[str] | None, Field(fail_fast=True)] = None
    """Several texts; the answer's ``results`` keep their order."""
    labels: Labels | None = None
    """The labels of all texts, in the user's own words. A label that comes again counts once."""
    labels_per_text: Annotated[list[Labels] | None, Field(fail_fast=True)] = None
    """One list of labels for each text. Either this or ``labels``."""
    threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """An entity's probability is above this."""
    flat_ner: bool = True
    """true: entities share no words. false: an entity may lie within another one."""
    multi_label: bool = False
    """Whether the same words may have several labels."""
    return_class_probs: bool = False
    """Whether each entity comes with the probabilities of its five best labels."""
    input_spans: Annotated[
        list[Annotated[list[CharacterSpan], Field(fail_fast=True)]] | None, Field(fail_fast=True)
    ] = None
    """One list for each text: the only spans that can be entities. One that does not begin and end with words, or is
    wider than the model takes, is none."""
    overflow: Literal["refuse", "truncate", "chunk"] = "refuse"
    """What happens to a text with more words than the model takes. refuse: the request is answered 400. truncate: the
    words behind the limit are left out, and the answer says how many stayed. chunk: the text is read in overlapping parts."""


def texts_of(data: Request, limits: Limits) -> list[str]:
    """Return the texts of a request that keeps the limits.

    Raises:
        InvalidRequest: It has none, or too many, or too long ones.
    """
    if data.text is not None and data.texts is not None:
        raise InvalidRequest("text and texts are both there; send one of them", param="data.texts")
    texts = [data.text] if data.text is not None else data.texts
    if texts is None:
        raise InvalidRequest("neither text nor texts is there; send one of them", param="data.text")
    if not texts:
        raise InvalidRequest("the list is empty; it takes at least one text", param="data.texts")
    if len(texts) > limits.texts:
        raise InvalidRequest(f"{len(texts)} texts; the limit is {limits.texts}", param="data.texts")
    for position, text in enumerate(texts):
        if len(text) > limits.characters_per_text:
            raise InvalidRequest(
                f"{len(text)} characters; the limit is {limits.characters_per_text} a text",
                param=text_path(data, position),
            )
    if (total := sum(map(len, texts))) > limits.characters:
        raise InvalidRequest(f"{total} characters in all; the limit is {limits.characters}", param="data.texts")
    return texts


def labels_of(data: Request, texts: int) -> list[tuple[str, ...]]:
    """Return each text's labels, every one once, at its first place: so the library takes them, too.

    Raises:
        InvalidRequest: There are none, or too many, or they are too long, or blank.
    """
    if data.labels is not None and data.labels_per_text is not None:
        raise InvalidRequest(
            "labels and labels_per_text are both there; send one of them", param="data.labels_per_text"
        )
    if data.labels is not None:
        return [unique(data.labels, "data.labels")] * texts
    if data.labels_per_text is None:
        raise InvalidRequest("neither labels nor labels_per_text is there; send one of them", param="data.labels")
    if len(data.labels_per_text) != texts:
        raise InvalidRequest(
            f"{len(data.labels_per_text)} lists of labels for {texts} texts", param="data.labels_per_text"
        )
    lists = [unique(labels, f"data.labels_per_text[{place}]") for place, labels in enumerate(data.labels_per_text)]
    if (different := len({label for labels in lists for label in labels})) > LABELS:
        raise InvalidRequest(f"{different} different labels; the limit is {LABELS}", param="data.labels_per_text")
    return lists


def unique(labels: Sequence[str], path: str) -> tuple[str, ...]:
    """Return ``labels`` without repetitions; ``path`` is where they stand in the request."""
    if len(labels) > LABELS:
        raise InvalidRequest(f"{len(labels)} labels; the limit is {LABELS}", param=path)
    for position, label in enumerate(labels):
        if len(label) > LABEL_CHARACTERS:
            raise InvalidRequest(
                f"{len(label)} characters; the limit is {LABEL_CHARACTERS} a label", param=f"{path}[{position}]"
            )
        if not label or label.isspace():
            raise InvalidRequest("the label is blank", param=f"{path}[{position}]")
    return tuple(dict.fromkeys(labels))


def label_path(data: Request, text: int, label: str) -> str:
    """Return where ``label`` stands first among the labels of a text."""
    if data.labels is not None:
        return f"data.labels[{data.labels.index(label)}]"
    lists = data.labels_per_text or []
    return f"data.labels_per_text[{text}][{lists[text].index(label)}]"


def labels_path(data: Request, text: int) -> str:
    """Return where the labels of a text stand."""
    return "data.labels" if data.labels is not None else f"data.labels_per_text[{text}]"


def text_path(data: Request, position: int) -> str:
    """Return where a text stands."""
    return "data.text" if data.text is not None else f"data.texts[{position}]"


def spans_of(data: Request, texts: int) -> list[list[CharacterSpan] | None]:
    """Return each text's ``input_spans``; None where all spans count.

    Raises:
        InvalidRequest: There are more or fewer lists than texts.
    """
    if data.input_spans is None:
        return [None] * texts
    if len(data.input_spans) != texts:
        raise InvalidRequest(f"{len(data.input_spans)} lists of spans for {texts} texts", param="data.input_spans")
    return list(data.input_spans)


def check_candidates(data: Request, pairs: int) -> None:
    """Refuse more pairs of a span and a label than a threshold as low as this one may have."""
    if data.threshold < LOW_THRESHOLD and pairs > CANDIDATES:
        raise InvalidRequest(
            f"with a threshold below {LOW_THRESHOLD}, words times span widths times labels may be {CANDIDATES}; they are"
            f" at least {pairs}",
            param="data.threshold",
        )


def check_entities(count: int) -> None:
    """Refuse an answer with too many entities."""
    if count > ENTITIES:
        raise InvalidRequest(
            f"there are more than {ENTITIES} entities above the threshold, the limit", param="data.threshold"
        )
