"""What the model found to what the client gets: every decision of gliner2's decoder, on the words of one prompt.

Thresholds of spans are compared as float32, as the library's tensors are; those of choices, labels and attributes as the floats that
the client sent. Overlaps are judged on characters, with the full stop that the library appends; answers end with the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from encoder_plugins.families.gliner2 import overlaps
from encoder_plugins.families.gliner2.overlaps import Policy
from encoder_plugins.families.gliner2.request import Label, Mention, Record, Relation, Result, Value
from encoder_plugins.families.gliner2.tasks import ENTITIES, ClassTask, Field, Schema, SpanTask, choice_places
from encoder_plugins.families.gliner2.validators import Checker
from encoder_plugins.families.gliner2.words import Words, ended


@dataclass(frozen=True, slots=True)
class Part:
    """A text, or a chunk of one, as the model reads it.

    Attributes:
        text: As it was sent, without a full stop of the library's.
        offset: Where it begins in the text of the client.
        words: Its words; the last may end behind the text.
    """

    text: str
    offset: int
    words: Words


@dataclass(frozen=True, slots=True)
class Candidate:
    """A span that may be a value.

    Attributes:
        start: The first word; words of the prefix count.
        width: How many words further the last one is.
        score: The probability.
        attributes: For entities: the logit of each label of all attributes, in the order of fields; else none.
    """

    start: int
    width: int
    score: float
    attributes: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What the model found in a part.

    Attributes:
        counts: Of each span task, the predicted number of instances.
        candidates: By task, step and field, in any order.
        labels: Of each classification, the logits of its labels.
    """

    counts: Sequence[int]
    candidates: dict[tuple[int, int, int], list[Candidate]]
    labels: Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Span:
    """A candidate with its place in the part: ``end`` can be one behind the part's text."""

    start: int
    end: int
    candidate: Candidate


def result(
    schema: Schema, part: Part, found: Found, threshold: float, policy: Policy, checker: Checker | None = None
) -> Result:
    """Return what was found in one part; offsets count from the beginning of the client's text.

    Raises:
        InvalidRequest: The validators of the schema take longer than ``checker`` lets them.
    """
    return _Decoder(schema, part, found, threshold, policy, checker or Checker()).result()


class _Decoder:
    def __init__(
        self, schema: Schema, part: Part, found: Found, threshold: float, policy: Policy, checker: Checker
    ) -> None:
        self._schema = schema
        self._part = part
        self._found = found
        self._threshold = threshold
        self._policy = policy
        self._checker = checker
        # as the library reads it
        self._text = ended(part.text)
        self._choices = {
            (task.name, number): places for task, number, _, places in choice_places(schema.spans) if task.fields
        }

    def result(self) -> Result:
        entities: dict[str, list[Mention]] = {}
        relations: dict[str, list[Relation]] = {}
        structures: dict[str, list[Record]] = {}
        for number, task in enumerate(self._schema.spans):
            count = self._found.counts[number]
            if task.kind == ENTITIES:
                entities = self._entities(number, task, count)
            elif task.kind == "relations":
                relations[task.name] = list(self._relations(number, task, count))
            else:
                structures[task.name] = list(self._records(number, task, count))
        return Result(
            entities=entities,
            classifications={
                task.name: labels(task, logits)
                for task, logits in zip(self._schema.classes, self._found.labels, strict=True)
            },
            relations=relations,
            structures=structures,
        )

    def _steps(self, number: int, count: int) -> list[int]:
        """Return the instances of a task that have candidates: without any, nothing is answered."""
        return sorted({step for task, step, _ in self._found.candidates if task == number and step < count})

    def _entities(self, number: int, task: SpanTask, count: int) -> dict[str, list[Mention]]:
        """Return the entities of each type; the model's count only says whether there are any."""
        made = {}
        for place, field in enumerate(task.fields[: self._schema.types]):
            spans = self._spans((number, 0, place), field) if count > 0 else []
            made[field.name] = self._mentions(spans if field.many else spans[:1], field.name)
        return made

    def _relations(self, number: int, task: SpanTask, count: int) -> Iterable[Relation]:
        """Yield the best head with the best tail of each instance that has both."""
        for step in self._steps(number, count):
            ends = [
                self._mentions(self._spans((number, step, place), field)[:1]) for place, field in enumerate(task.fields)
            ]
            if all(ends):
                (head,), (tail,) = ends
                yield Relation(head, tail)

    def _records(self, number: int, task: SpanTask, count: int) -> Iterable[Record]:
        """Yield the instances of a structure that have any value."""
        for step in self._steps(number, count):
            record: Record = {}
            for place, field in enumerate(task.fields):
                key = (number, step, place)
                if field.choices:
                    values = self._chosen(key, field, self._choices[task.name, place])
                else:
                    spans = self._spans(key, field)
                    mentions = self._mentions(spans if field.many else spans[:1])
                    values = [Value(found.text, found.score, found.start, found.end) for found in mentions]
                record[field.name] = values if field.many else next(iter(values), None)
            if any(record.values()):
                yield record

    def _chosen(self, key: tuple[int, int, int], field: Field, places: Sequence[int]) -> list[Value]:
        """Return the choices whose word of the prefix is a value, in their order; of a field with one value, the best."""
        limit = self._threshold if field.threshold is None else field.threshold
        scores = {found.start: found.score for found in self._found.candidates.get(key, ()) if found.width == 0}
        values = [
            Value(choice, scores[place])
            for choice, place in zip(field.choices, places, strict=True)
            if scores.get(place, -1.0) >= limit
        ]
        # the first of equal ones
        return values if field.many else sorted(values, key=lambda value: -value.score)[:1]

    def _spans(self, key: tuple[int, int, int], field: Field) -> list[_Span]:
        """Return the spans of the text that are kept for a field, the best first."""
        limit = float(np.float32(self._threshold if field.threshold is None else field.threshold))
        before = len(self._schema.prefix)
        words = self._part.words
        spans = []
        for found in self._found.candidates.get(key, ()):
            first = found.start - before
            last = first + found.width
            if first >= 0 and last < len(words) and found.score >= limit:
                spans.append(_Span(words.starts[first], words.ends[last], found))
        if field.validators and spans:
            values = [self._text[span.start : span.end].strip() for span in spans]
            accepted = self._checker.accepted(field.validators, values)
            spans = [span for span, kept in zip(spans, accepted, strict=True) if kept]
        kept = overlaps.resolve(
            [span.start for span in spans],
            [span.end for span in spans],
            [span.candidate.score for span in spans],
            self._policy,
        )
        return [spans[row] for row in kept]

    def _mentions(self, spans: Iterable[_Span], kind: str | None = None) -> list[Mention]:
        """Return spans as parts of the text, without what lies behind it; with the attributes of entities of type ``kind``."""
        part = self._part
        made: dict[tuple[int, int], Mention] = {}
        for span in spans:
            end = min(span.end, len(part.text))
            if span.start >= end:
                continue
            attributes = self._attributes(span.candidate, kind) if kind and self._schema.attributes else None
            mention = Mention(
                part.text[span.start : end],
                span.start + part.offset,
                end + part.offset,
                span.candidate.score,
                attributes,
            )
            made.setdefault((span.start, end), mention)
        return list(made.values())

    def _attributes(self, candidate: Candidate, kind: str) -> dict[str, Label | list[Label]]:
        """Return the labels that an entity has in each group for its type."""
        made: dict[str, Label | list[Label]] = {}
        for group in self._schema.attributes:
            if group.types is not None and kind not in group.types:
                continue
            logits = torch.tensor([candidate.attributes[field - self._schema.types] for field in group.fields])
            if group.multi_label:
                scores = torch.sigmoid(logits).tolist()
                made[group.name] = [
                    Label(name, score)
                    for name, score in zip(group.labels, scores, strict=True)
                    if score >= group.threshold
                ]
            else:
                made[group.name] = _best(group.labels, torch.softmax(logits, -1).tolist())
        return made


def labels(task: ClassTask, logits: torch.Tensor) -> list[Label]:
    """Return the labels of a text: one, or with ``multi_label`` at least one."""
    activation: Callable[[torch.Tensor], torch.Tensor] = (
        (lambda values: torch.softmax(values, -1)) if task.softmax else torch.sigmoid
    )
    scores = activation(logits.float()).tolist()
    best = _best(task.labels, scores)
    if not task.multi_label:
        return [best]
    chosen = [
        Label(name, score) for name, score in zip(task.labels, scores, strict=True) if score >= task.threshold
    ] or [best]
    return chosen if task.top_k is None else sorted(chosen, key=lambda label: -label.score)[: task.top_k]


def _best(names: Sequence[str], scores: Sequence[float]) -> Label:
    """Return the label with the largest score, the first of equal ones."""
    best = max(range(len(scores)), key=scores.__getitem__)
    return Label(names[best], scores[best])


def values(found: Result) -> int:
    """Return how many values an answer holds."""
    tables: list[Sequence[object]] = [
        *found.entities.values(),
        *found.relations.values(),
        *found.classifications.values(),
    ]
    for records in found.structures.values():
        tables += (
            value if isinstance(value, list) else [value] for record in records for value in record.values() if value
        )
    return sum(map(len, tables))
