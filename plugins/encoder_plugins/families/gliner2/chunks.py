"""Long texts in overlapping chunks of words, and one answer out of theirs, as the library's ``extract_long`` does both. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from encoder_plugins.families.gliner2 import overlaps
from encoder_plugins.families.gliner2.overlaps import Policy
from encoder_plugins.families.gliner2.request import (
    CHUNK_OVERLAP,
    CHUNK_WORDS,
    Label,
    Mention,
    Record,
    Relation,
    Result,
    Value,
)
from encoder_plugins.families.gliner2.tasks import ENTITIES, Schema
from encoder_plugins.families.gliner2.words import Words

T = TypeVar("T")


class Chunk(NamedTuple):
    """The characters from ``start`` to before ``end``."""

    start: int
    end: int


def plan(text: str, words: Words) -> list[Chunk]:
    """Return the chunks of a text with ``words``, which are those of the text without an appended full stop."""
    if not words:
        return [Chunk(0, len(text))]
    found = []
    first = 0
    while True:
        last = min(first + CHUNK_WORDS, len(words))
        found.append(Chunk(words.starts[first], words.ends[last - 1]))
        if last == len(words):
            return found
        first += CHUNK_WORDS - CHUNK_OVERLAP


def merge(schema: Schema, results: Sequence[Result], policy: Policy) -> Result:
    """Return one answer for a text whose chunks have ``results``.

    Entities are resolved again over the whole text and sorted by their place; of a type with one value the first stays. Relations
    and records that are equal but for their scores count once, with the higher one. A classification with one label has the most
    probable of all chunks, one with several labels each that a chunk has.
    """
    again: Policy = "disallow" if policy == "greedy" else policy
    entities: dict[str, list[Mention]] = {}
    for task in schema.spans:
        if task.kind == ENTITIES:
            for field in task.fields[: schema.types]:
                found = _resolved([item for result in results for item in result.entities[field.name]], again)
                entities[field.name] = found if field.many else found[:1]
    return Result(
        entities=entities,
        classifications={task.name: _labels(task.name, task.multi_label, results) for task in schema.classes},
        relations={
            task.name: _distinct(
                [
                    (_relation_key(item), _score(item), item)
                    for result in results
                    for item in result.relations[task.name]
                ]
            )
            for task in schema.spans
            if task.kind == "relations"
        },
        structures={
            task.name: _distinct(
                [(_record_key(item), _score(item), item) for result in results for item in result.structures[task.name]]
            )
            for task in schema.spans
            if task.kind == "structures"
        },
    )


def _resolved(found: Sequence[Mention], policy: Policy) -> list[Mention]:
    kept = overlaps.resolve(
        [item.start for item in found], [item.end for item in found], [item.score for item in found], policy
    )
    return sorted((found[row] for row in kept), key=lambda item: (item.start, item.end))


def _labels(task: str, multi_label: bool, results: Sequence[Result]) -> list[Label]:
    every = [label for result in results for label in result.classifications[task]]
    if multi_label:
        return _distinct([(label.label, label.score, label) for label in every])
    return [max(every, key=lambda label: label.score)]


def _distinct(found: Iterable[tuple[Hashable, float, T]]) -> list[T]:
    """Return one of the items with equal keys, at the place of the first of them: the first with the highest score."""
    best: dict[Hashable, tuple[float, T]] = {}
    for key, score, item in found:
        if key not in best or score > best[key][0]:
            best[key] = (score, item)
    return [item for _, item in best.values()]


def _relation_key(relation: Relation) -> Hashable:
    return tuple((end.text, end.start, end.end) for end in (relation.head, relation.tail))


def _record_key(record: Record) -> Hashable:
    return tuple((name, tuple(_keys(value)), isinstance(value, list)) for name, value in record.items())


def _keys(value: Value | list[Value] | None) -> Iterable[Hashable]:
    return ((item.text, item.start, item.end) for item in _listed(value))


def _score(item: Relation | Record) -> float:
    """Return the highest score in a relation or record."""
    if isinstance(item, Relation):
        return max(item.head.score, item.tail.score)
    return max(part.score for value in item.values() for part in _listed(value))


def _listed(value: Value | list[Value] | None) -> list[Value]:
    return value if isinstance(value, list) else [] if value is None else [value]
