"""What a client of a GLiNER2 plugin sends and gets. Pure.

The schema has the fields and the rules of ``Schema.from_dict`` of gliner2 2.1.0; ``families.gliner2.schema`` checks what types alone
do not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from encoder_plugins.families.gliner.request import Usage
from encoder_plugins.inputs.body import Data
from encoder_plugins.inputs.text import TextLimits

CHUNK_WORDS = 384
"""Words of a chunk of a long text, as the library's ``extract_long`` has them."""

CHUNK_OVERLAP = 64
"""Words that two chunks share."""

LOW_THRESHOLD = 0.1
"""Below it, almost any pair of a span and a field can be a candidate, and they are counted before."""

Threshold: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gliner2Limits(TextLimits):
    """The limits of a request; ``families.gliner2.limits`` describes them."""

    tasks: int
    fields: int
    labels: int
    choices: int
    patterns: int
    pattern_characters: int
    label_characters: int
    description_characters: int
    prompts: int
    prompt_tokens: int
    candidates: int
    values: int


class ValidatorInput(Data, frozen=True):
    """A regular expression that values must match: the library's ``RegexValidator``."""

    pattern: Annotated[
        str,
        Meta(
            description="In Python's syntax. A value is matched as the library reads it: with the full stop that it appends to a text."
        ),
    ]
    mode: Annotated[
        Literal["full", "partial"], Meta(description="Whether the whole value matches, or a part of it.")
    ] = "full"
    exclude: Annotated[bool, Meta(description="Leave out the values that match, not the others.")] = False
    flags: list[Literal["IGNORECASE", "MULTILINE", "DOTALL", "VERBOSE", "ASCII"]] = msgspec.field(
        default_factory=lambda: ["IGNORECASE"]
    )


Validators: TypeAlias = Annotated[
    list[ValidatorInput],
    Meta(
        description="All must accept a value, before overlapping ones are compared. Not in the library's dictionaries."
    ),
]


class EntityInput(Data, frozen=True):
    """One entity type."""

    description: Annotated[str | None, Meta(description="What it means, for the model.")] = None
    dtype: Annotated[Literal["str", "list"] | None, Meta(description="str: the best mention only.")] = None
    threshold: Annotated[Threshold | None, Meta(description="Instead of the request's.")] = None
    validators: Validators | None = None


class AttributesInput(Data, frozen=True):
    """A group of labels, of which each entity gets one, or some."""

    labels: Annotated[list[str], Meta(min_length=1)]
    multi_label: Annotated[bool, Meta(description="All labels with a probability of at least `threshold`.")] = False
    threshold: Threshold = 0.5
    applies_to: Annotated[list[str] | None, Meta(description="The entity types that have it; null for all.")] = None
    qualify_labels: Annotated[bool, Meta(description="Whether the model reads `group: label`.")] = False


class RelationInput(Data, frozen=True):
    """One relation."""

    description: Annotated[str | None, Meta(description="What it means, for the model.")] = None
    threshold: Annotated[Threshold | None, Meta(description="Instead of the request's.")] = None


class FieldInput(Data, frozen=True):
    """One field of a structure."""

    name: str
    dtype: Annotated[Literal["str", "list"], Meta(description="str: one value or null. list: all values.")] = "list"
    choices: Annotated[list[str] | None, Meta(description="The values that it can have.")] = None
    description: Annotated[str | None, Meta(description="What it means, for the model.")] = None
    threshold: Annotated[Threshold | None, Meta(description="Instead of the request's.")] = None
    validators: Validators | None = None
    cardinality: Annotated[str | None, Meta(description="Only boundary models (GLiNER2.5) read it: refused.")] = None
    exclusive: Annotated[bool, Meta(description="Only boundary models (GLiNER2.5) read it: refused.")] = False


class StructureInput(Data, frozen=True):
    """A kind of record."""

    fields: Annotated[list[FieldInput], Meta(min_length=1)]
    mode: Annotated[str | None, Meta(description="Only boundary models (GLiNER2.5) read it: refused.")] = None
    anchor: Annotated[str | None, Meta(description="Only boundary models (GLiNER2.5) read it: refused.")] = None
    occurrence_policy: Annotated[str | None, Meta(description="Only training reads it: refused.")] = None


class TaskInput(Data, frozen=True):
    """How a text is classified."""

    labels: Annotated[
        list[str] | dict[str, str], Meta(description="Two labels or more, or labels and their descriptions.")
    ]
    multi_label: Annotated[bool, Meta(description="Whether a text can have several labels.")] = False
    cls_threshold: Annotated[
        Threshold,
        Meta(description="With `multi_label`: labels with a probability of at least this; if none, the best."),
    ] = 0.5
    top_k: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="With `multi_label`: at most so many labels.")
    ] = None
    class_act: Annotated[
        Literal["auto", "sigmoid", "softmax"] | None,
        Meta(description="auto, null: softmax, and sigmoid with `multi_label`."),
    ] = None
    prompt: Annotated[str | None, Meta(description="An instruction for the model.")] = None
    examples: Annotated[
        list[tuple[str, str]] | None, Meta(description="Pairs of a text and one of the labels, for the model.")
    ] = None


class ClassificationInput(TaskInput, frozen=True, kw_only=True):
    """A task of classification."""

    task: str


Entities: TypeAlias = Annotated[
    list[str] | dict[str, str | EntityInput],
    Meta(description="Entity types, or entity types with their descriptions or settings."),
]
Relations: TypeAlias = Annotated[
    list[str] | dict[str, str | RelationInput],
    Meta(description="Relations, or relations with descriptions or settings."),
]


class SchemaInput(Data, frozen=True):
    """What to extract: the form of the library's `Schema.from_dict`."""

    entities: Entities | None = None
    structures: dict[str, StructureInput] | None = None
    classifications: list[ClassificationInput] | None = None
    relations: Relations | None = None
    entity_attributes: dict[str, AttributesInput] | None = None


class Request(Data, frozen=True):
    """Texts and what to extract from them."""

    text: Annotated[str | None, Meta(description="One text. Either this or `texts`.")] = None
    texts: Annotated[list[str] | None, Meta(description="Several texts; `results` keeps their order.")] = None
    schema: Annotated[SchemaInput | None, Meta(description="What to extract from all texts.")] = None
    schemas: Annotated[list[SchemaInput] | None, Meta(description="One schema for each text.")] = None
    entities: Entities | None = None
    classifications: Annotated[
        dict[str, list[str] | TaskInput] | list[ClassificationInput] | None,
        Meta(description="Labels, or settings, by task; or a list as in `schema`."),
    ] = None
    relations: Relations | None = None
    structures: Annotated[
        dict[str, list[str | FieldInput] | StructureInput] | None,
        Meta(description="Fields by structure. A field can be a string: `name::str::[one|other]::what it means`."),
    ] = None
    threshold: Annotated[Threshold, Meta(description="A value's probability is at least this.")] = 0.5
    overlap_policy: Annotated[
        str | None,
        Meta(
            description="Which of overlapping values of one field are kept. null: the best, one after the other. flat"
            " (disallow, no_overlap, non_overlapping): the set with the largest sum. nested (allow_nested): the best, one"
            " after the other, one may lie within another. longest (keep_longest): all but those within another. allow"
            " (all, none): all."
        ),
    ] = None
    overflow: Annotated[
        Literal["refuse", "truncate", "chunk"],
        Meta(
            description="How long texts are read. refuse: whole, or the answer is 400. truncate: the words behind what the"
            " model takes are left out, and the answer says how many stayed. chunk: in chunks of 384 words, of which 64"
            " overlap, as the library's extract_long does."
        ),
    ] = "refuse"


class Label(msgspec.Struct, frozen=True):
    """A label and its probability."""

    label: str
    score: float


class Mention(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a text. Offsets count code points."""

    text: str
    start: int
    end: int
    score: float
    attributes: dict[str, Label | list[Label]] | None = None


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value of a field: a part of the text, or a choice, which has no offsets."""

    text: str
    score: float
    start: int | None = None
    end: int | None = None


class Relation(msgspec.Struct, frozen=True):
    """Two parts of a text that are related."""

    head: Mention
    tail: Mention


Record: TypeAlias = dict[str, Value | list[Value] | None]


class Result(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was found in one text, by the names of the schema; all of them are there, whatever was found.

    ``truncated`` and ``words_kept`` come with ``truncate``, ``chunks`` with ``chunk``.
    """

    entities: dict[str, list[Mention]]
    classifications: dict[str, list[Label]]
    relations: dict[str, list[Relation]]
    structures: dict[str, list[Record]]
    truncated: bool | None = None
    words_kept: int | None = None
    chunks: int | None = None


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


def text_path(data: Request, position: int) -> str:
    """Return the field of a text."""
    return "data.text" if data.text is not None else f"data.texts[{position}]"
