"""The tasks of a checked schema, and how the library writes what they have in common into a prompt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from encoder_plugins.families.gliner2.validators import Validator

ENTITIES = "entities"
"""The name of the task of entities in a prompt."""

MOST_STEPS = 19
"""The largest count that the model can predict: its head has 20 classes."""


@dataclass(frozen=True, slots=True)
class Field:
    """What the model looks for: an entity type, a label of an attribute, the head or tail of a relation, a structure's field.

    Attributes:
        name: Its name in the prompt.
        many: Whether it has all values, or the best one.
        threshold: A value's probability is at least this; None for the request's.
        choices: The values that it can have; none where they are parts of the text.
        validators: All must accept a value that is a part of the text.
    """

    name: str
    many: bool = True
    threshold: float | None = None
    choices: tuple[str, ...] = ()
    validators: tuple[Validator, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanTask:
    """A task whose fields have parts of the text as values.

    Attributes:
        kind: Under which key of the answer it belongs.
        name: Its name there; ``entities`` for all entity types together.
        piece: What stands behind ``[P]``: the name, descriptions.
        fields: In the prompt's order.
    """

    kind: Literal["structures", "entities", "relations"]
    name: str
    piece: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ClassTask:
    """A classification of the text.

    Attributes:
        name: Its name in the answer.
        piece: What stands behind ``[P]``: the name, prompt, descriptions, examples.
        labels: In the prompt's order.
        multi_label: Whether it has several labels.
        threshold: With ``multi_label``: that of a label's probability.
        top_k: With ``multi_label``: the largest number of labels; None for any.
        softmax: Whether probabilities add up to 1.
    """

    name: str
    piece: str
    labels: tuple[str, ...]
    multi_label: bool
    threshold: float
    top_k: int | None
    softmax: bool


@dataclass(frozen=True, slots=True)
class Attributes:
    """A group of labels of entities.

    Attributes:
        name: Its name in the answer.
        labels: Their names in the answer.
        fields: The place of each among the fields of the task of entities.
        multi_label: Whether an entity has several of them.
        threshold: With ``multi_label``: that of a label's probability.
        types: The entity types that have it; None for all.
    """

    name: str
    labels: tuple[str, ...]
    fields: tuple[int, ...]
    multi_label: bool
    threshold: float
    types: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Schema:
    """What to extract from a text.

    Attributes:
        path: The field of the request.
        spans: Structures, entities, relations: in the prompt's order.
        classes: Classifications, which follow in the prompt.
        attributes: Groups of labels of entities.
        types: The number of entity types; what follows among the fields of entities are labels of attributes.
        prefix: The words before the text, which hold the choices.
        strings: Each string of the prompt with its field of the request.
    """

    path: str
    spans: tuple[SpanTask, ...]
    classes: tuple[ClassTask, ...]
    attributes: tuple[Attributes, ...]
    types: int
    prefix: tuple[str, ...]
    strings: tuple[tuple[str, str], ...]

    @property
    def queries(self) -> int:
        """The largest number of pairs of a field and a step."""
        return sum(len(task.fields) * (1 if task.kind == ENTITIES else MOST_STEPS) for task in self.spans)


def described(piece: str, descriptions: Mapping[str, str]) -> str:
    """Return what stands behind ``[P]``, with descriptions of fields or labels."""
    return piece + "".join(f" [DESCRIPTION] {name}: {text}" for name, text in descriptions.items())


def prefix_of(spans: Iterable[SpanTask]) -> list[str]:
    """Return the words before the text, which hold the choices: ``( it: st ( x | y ) , other ( z ) )``."""
    words: list[str] = []
    for task in spans:
        inner: list[str] = []
        for field in task.fields:
            if field.choices:
                inner += [",", field.name, "(", field.choices[0]]
                for choice in field.choices[1:]:
                    inner += ["|", choice]
                inner.append(")")
        if inner:
            words += ["(", f"{task.name}:", *inner[1:], ")"]
    return words


def choice_places(spans: Iterable[SpanTask]) -> Iterator[tuple[SpanTask, int, Field, list[int]]]:
    """Yield each field with choices: its task, its number there, and which words of the prefix its choices are."""
    place = 0
    for task in spans:
        chosen = [(number, field) for number, field in enumerate(task.fields) if field.choices]
        place += 2 if chosen else 0
        for number, field in chosen:
            # the name, an opening bracket, choices with strokes between them, a closing bracket, and a comma or a bracket
            yield task, number, field, [place + 2 + 2 * choice for choice in range(len(field.choices))]
            place += 2 * len(field.choices) + 3
