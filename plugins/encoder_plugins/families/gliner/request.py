"""What a client of a GLiNER plugin sends and gets, and what can be checked without the checkpoint's tokenizer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs.body import Data
from encoder_plugins.inputs.text import TextLimits

CLASS_PROBABILITIES = 5
"""How many labels ``class_probs`` holds at most."""

LOW_THRESHOLD = 0.1
"""Below it, almost any pair of a span and a label can be a candidate, and they are counted before."""

LABEL_FIELDS = ("labels", "labels_per_text", "candidates_per_text", "label_set")
"""Where labels come from; requests of some plugins have only the first of these fields."""

Offset = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlinerLimits(TextLimits):
    """The limits of a request; ``families.gliner.limits`` describes them."""

    labels: int
    label_characters: int
    prompts: int
    candidates: int
    entities: int


class CharacterSpan(Data, frozen=True):
    """A part of a text."""

    start: Annotated[Offset, Meta(description="The first character.")]
    end: Annotated[Offset, Meta(description="The character behind the last one.")]


class EntityRequest(Data, frozen=True):
    """Texts, the labels of entities to find in them, and how to choose among what is found."""

    text: Annotated[str | None, Meta(description="One text. Either this or `texts`.")] = None
    texts: Annotated[list[str] | None, Meta(description="Several texts; `results` keeps their order.")] = None
    labels: Annotated[
        list[str] | None,
        Meta(description="The labels of all texts, in your own words. A label that is there twice counts once."),
    ] = None
    labels_per_text: Annotated[
        list[list[str]] | None, Meta(description="One list of labels for each text. Either this or `labels`.")
    ] = None
    threshold: Annotated[float, Meta(ge=0, le=1, description="An entity's probability is above this.")] = 0.5
    flat_ner: Annotated[
        bool, Meta(description="true: entities share no words. false: an entity may lie within another one.")
    ] = True
    multi_label: Annotated[bool, Meta(description="Whether the same words may have several labels.")] = False
    input_spans: Annotated[
        list[list[CharacterSpan]] | None,
        Meta(
            description="One list for each text: the only spans that can be entities. A span that does not begin and"
            " end with words, or is wider than the model takes, is never an entity."
        ),
    ] = None
    language: Annotated[
        str | None,
        Meta(
            description="The language whose tokenizer splits the texts into words, where the checkpoint was prepared with"
            " wordsSplitter: stanza. Without it each text's language is detected."
        ),
    ] = None
    overflow: Annotated[
        Literal["refuse", "truncate", "chunk"],
        Meta(
            description="What happens to a text with more words than the model takes. refuse: the request is answered"
            " 400. truncate: the words behind the limit are left out, and the answer says how many stayed. chunk: the"
            " text is read in overlapping chunks."
        ),
    ] = "refuse"


class Request(EntityRequest, frozen=True):
    """Texts, the labels of entities to find in them, and how to choose among what is found."""

    return_class_probs: Annotated[
        bool, Meta(description="Whether each entity comes with the probabilities of its five best labels.")
    ] = False


class Entity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a text that has a label. Offsets count code points; ``id`` is that of the candidate whose label it is."""

    start: int
    end: int
    text: str
    label: str
    score: float
    class_probs: dict[str, float] | None = None
    id: str | None = None


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entities of one text; ``truncated`` and ``words_kept`` with ``truncate``, ``chunks`` with ``chunk``.

    ``language`` is the one whose tokenizer found the words, where there are several; with ``language_fallback`` the text's own language
    has none, or was not found.
    """

    entities: list[Entity]
    truncated: bool | None = None
    words_kept: int | None = None
    chunks: int | None = None
    language: str | None = None
    language_fallback: bool = False


class Usage(msgspec.Struct, frozen=True):
    """What a request cost."""

    prompt_tokens: int
    words: int


class SingleAnswer(Result, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a request with ``text``."""

    usage: Usage


class Answer(msgspec.Struct, frozen=True):
    """The answer to a request with ``texts``, in their order."""

    results: list[Result]
    usage: Usage


class SingleBody(msgspec.Struct, frozen=True):
    """The body of a response to a request with ``text``."""

    data: SingleAnswer


class Body(msgspec.Struct, frozen=True):
    """The body of a response to a request with ``texts``."""

    data: Answer


def labels_of(data: EntityRequest, texts: int, limits: GlinerLimits) -> list[tuple[str, ...]]:
    """Return each text's labels, every one once, at its first position: so the library takes them, too.

    Raises:
        InvalidRequest: There are none, or too many, or they are too long, or blank.
    """
    if data.labels is not None and data.labels_per_text is not None:
        raise InvalidRequest(
            "labels and labels_per_text are both there; send one of them", param="data.labels_per_text"
        )
    if data.labels is not None:
        return [unique(data.labels, "data.labels", limits)] * texts
    if data.labels_per_text is None:
        fields = [name for name in LABEL_FIELDS if hasattr(data, name)]
        raise InvalidRequest(
            f"no labels are there; send one of {', '.join(fields[:-1])} and {fields[-1]}", param="data.labels"
        )
    if len(data.labels_per_text) != texts:
        raise InvalidRequest(
            f"{len(data.labels_per_text)} lists of labels for {texts} texts", param="data.labels_per_text"
        )
    lists = [
        unique(labels, f"data.labels_per_text[{position}]", limits)
        for position, labels in enumerate(data.labels_per_text)
    ]
    if (different := len({label for labels in lists for label in labels})) > limits.labels:
        raise InvalidRequest(
            f"{different} different labels; the limit is {limits.labels}", param="data.labels_per_text"
        )
    return lists


def unique(labels: Sequence[str], path: str, limits: GlinerLimits, *, keys: bool = False) -> tuple[str, ...]:
    """Return ``labels`` without repetitions; ``path`` is their field in the request, whose keys they may be."""
    if len(labels) > limits.labels:
        raise InvalidRequest(f"{len(labels)} labels; the limit is {limits.labels}", param=path)
    for position, label in enumerate(labels):
        if len(label) > (limit := limits.label_characters):
            problem = f"{len(label)} characters; the limit is {limit} a label"
        elif not label or label.isspace():
            problem = "the label is blank"
        else:
            continue
        raise InvalidRequest(problem, param=f"{path}.{label}" if keys else f"{path}[{position}]")
    return tuple(dict.fromkeys(labels))


def label_path(data: EntityRequest, text: int, label: str) -> str:
    """Return the field of the first ``label`` among the labels of a text."""
    if data.labels is not None:
        return f"data.labels[{data.labels.index(label)}]"
    lists = data.labels_per_text or []
    return f"data.labels_per_text[{text}][{lists[text].index(label)}]"


def labels_path(data: EntityRequest, text: int) -> str:
    """Return the field of the labels of a text."""
    return "data.labels" if data.labels is not None else f"data.labels_per_text[{text}]"


def text_path(data: EntityRequest, position: int) -> str:
    """Return the field of a text."""
    return "data.text" if data.text is not None else f"data.texts[{position}]"


def spans_of(data: EntityRequest, texts: int) -> list[list[CharacterSpan] | None]:
    """Return each text's ``input_spans``; None where all spans count.

    Raises:
        InvalidRequest: There are more or fewer lists than texts.
    """
    if data.input_spans is None:
        return [None] * texts
    if len(data.input_spans) != texts:
        raise InvalidRequest(f"{len(data.input_spans)} lists of spans for {texts} texts", param="data.input_spans")
    return list(data.input_spans)


def check_language(data: EntityRequest, languages: Sequence[str]) -> None:
    """Refuse a language that has no tokenizer here."""
    if data.language is None or data.language in languages:
        return
    supported = (
        f"supported: {', '.join(languages)}" if languages else "this checkpoint splits words of all languages alike"
    )
    raise InvalidRequest(f"the language is {data.language[:32]!r}; {supported}", param="data.language")


def wants_class_probs(data: EntityRequest) -> bool:
    """Return whether each entity comes with the probabilities of its best labels."""
    return isinstance(data, Request) and data.return_class_probs


def check_candidates(data: EntityRequest, pairs: int, limits: GlinerLimits, counted: str) -> None:
    """Refuse more ``pairs`` of a label and what is ``counted`` than a threshold as low as this one may have."""
    if data.threshold < LOW_THRESHOLD and pairs > limits.candidates:
        raise InvalidRequest(
            f"with a threshold below {LOW_THRESHOLD}, {counted} may be {limits.candidates}; they are at least {pairs}",
            param="data.threshold",
        )


def check_entities(count: int, limits: GlinerLimits) -> None:
    """Refuse an answer with too many entities."""
    if count > limits.entities:
        raise InvalidRequest(
            f"there are more than {limits.entities} entities above the threshold, the limit", param="data.threshold"
        )
