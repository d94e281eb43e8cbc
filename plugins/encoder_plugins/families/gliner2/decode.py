"""What the model found to what the client gets: every decision of gliner2's decoder, on the words of one prompt.

Thresholds of spans are compared as float32, as the library's tensors are; those of choices, labels and attributes as the floats that
the client sent. Overlaps are judged on characters, with the full stop that the library appends; answers end with the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
class Candidates:
    """Spans that may be values, in any order.

    Attributes:
        places: `[candidates, 5]`: task, step, field, first word (words of the prefix count), and how many words further the last one is.
        scores: `[candidates]` float32: the probability.
        attributes: `[candidates, labels]`: for entities, the logit of each label of all attributes, in the order of fields.
    """

    places: NDArray[np.int64]
    scores: NDArray[np.float32]
    attributes: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Found:
    """What the model found in a part.

    Attributes:
        counts: Of each span task, the predicted number of instances.
        candidates: Of all span tasks.
        labels: Of each classification, the logits of its labels.
    """

    counts: Sequence[int]
    candidates: Candidates
    labels: Sequence[torch.Tensor]


_Key = tuple[int, int, int]
"""A task, a step and a field."""


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Candidates, those of a field together, the best first.

    Attributes:
        fields: Where those of each field are.
        starts: Where each begins in the part.
        ends: Where it ends, which can be one behind the part's text.
        scores: Its score.
        rows: Its row among the candidates.
    """

    fields: Mapping[_Key, range]
    starts: Sequence[int]
    ends: Sequence[int]
    scores: Sequence[float]
    rows: Sequence[int]


def result(schema: Schema, part: Part, found: Found, threshold: float, policy: Policy, checker: Checker) -> Result:
    """Return what was found in one part; offsets count from the beginning of the client's text.

    Raises:
        InvalidRequest: The validators of the schema take longer than ``checker`` lets them.
    """
    return _Decoder(schema, part, found, threshold, policy, checker).result()


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
        # where values end: white space before the full stop that is appended belongs to none
        self._end = len(part.text.rstrip())
        self._choices = {
            (task.name, number): places for task, number, _, places in choice_places(schema.spans) if task.fields
        }
        self._chosen_words = self._words_of_choices()
        self._ranked = self._rank()
        self._keys = self._ranked.fields.keys() | self._chosen_words.keys()

    def _words_of_choices(self) -> dict[_Key, dict[int, float]]:
        """Return the scores of single words, by the word, of each field with choices."""
        places, scores = self._found.candidates.places, self._found.candidates.scores
        found: dict[_Key, dict[int, float]] = {}
        if self._choices:
            single = np.flatnonzero((places[:, 4] == 0) & self._of_fields(lambda field: bool(field.choices)))
            for (task, step, field, word), score in zip(
                places[single, :4].tolist(), scores[single].tolist(), strict=True
            ):
                found.setdefault((task, step, field), {})[word] = score
        return found

    def _rank(self) -> _Ranked:
        """Return the candidates that are spans of the text and reach their field's threshold, those of each field together, the best first."""
        places, scores = self._found.candidates.places, self._found.candidates.scores
        words = self._part.words
        first = places[:, 3] - len(self._schema.prefix)
        last = first + places[:, 4]
        limits = self._of_fields(self._limit).astype(np.float32)
        kept = (first >= 0) & (last < len(words)) & (scores >= limits)
        # the order of words is that of their characters
        rows = np.lexsort((last, first, -scores, places[:, 2], places[:, 1], places[:, 0], ~kept))[
            : np.count_nonzero(kept)
        ]
        keys = places[rows, :3]
        begins = np.flatnonzero(np.any(keys[1:] != keys[:-1], axis=-1)) + 1
        bounds = [0, *begins.tolist(), len(rows)]
        return _Ranked(
            fields={(*keys[begin].tolist(),): range(begin, end) for begin, end in pairwise(bounds) if begin < end},
            starts=list(map(words.starts.__getitem__, first[rows].tolist())),
            ends=list(map(words.ends.__getitem__, last[rows].tolist())),
            scores=scores[rows].tolist(),
            rows=rows.tolist(),
        )

    def _of_fields(self, value: Callable[[Field], float]) -> NDArray[Any]:
        """Return `[candidates]`: what each candidate's field has."""
        places = self._found.candidates.places
        firsts = np.array([0, *accumulate(len(task.fields) for task in self._schema.spans)])
        every = np.array([value(field) for task in self._schema.spans for field in task.fields])
        return every[firsts[places[:, 0]] + places[:, 2]]

    def _limit(self, field: Field) -> float:
        return self._threshold if field.threshold is None else field.threshold

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
        return sorted({step for task, step, _ in self._keys if task == number and step < count})

    def _entities(self, number: int, task: SpanTask, count: int) -> dict[str, list[Mention]]:
        """Return the entities of each type; the model's count only says whether there are any."""
        made = {}
        for place, field in enumerate(task.fields[: self._schema.types]):
            spans = self._spans((number, 0, place), field, all_of_them=field.many) if count > 0 else []
            made[field.name] = self._mentions(spans, field.name)
        return made

    def _relations(self, number: int, task: SpanTask, count: int) -> Iterable[Relation]:
        """Yield the best head with the best tail of each instance that has both."""
        for step in self._steps(number, count):
            ends = [
                self._mentions(self._spans((number, step, place), field, all_of_them=False))
                for place, field in enumerate(task.fields)
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
                    mentions = self._mentions(self._spans(key, field, all_of_them=field.many))
                    values = [Value(found.text, found.score, found.start, found.end) for found in mentions]
                record[field.name] = values if field.many else next(iter(values), None)
            if any(record.values()):
                yield record

    def _chosen(self, key: _Key, field: Field, places: Sequence[int]) -> list[Value]:
        """Return the choices whose word of the prefix is a value, in their order; of a field with one value, the best."""
        limit, scores = self._limit(field), self._chosen_words.get(key, {})
        values = [
            Value(choice, scores[place])
            for choice, place in zip(field.choices, places, strict=True)
            if scores.get(place, -1.0) >= limit
        ]
        # the first of equal ones
        return values if field.many else sorted(values, key=lambda value: -value.score)[:1]

    def _spans(self, key: _Key, field: Field, *, all_of_them: bool) -> Sequence[int]:
        """Return the spans of the text that are kept for a field, the best first, or the best of them alone; as places in ``_ranked``."""
        ranked = self._ranked
        spans: Sequence[int] = ranked.fields.get(key, range(0))
        if field.validators and spans:
            values = [self._text[ranked.starts[place] : ranked.ends[place]].strip() for place in spans]
            accepted = self._checker.accepted(field.validators, values)
            spans = [place for place, kept in zip(spans, accepted, strict=True) if kept]
        if not all_of_them and self._policy in overlaps.BEST_FIRST:
            return spans[:1]
        kept = overlaps.resolve(
            [ranked.starts[place] for place in spans],
            [ranked.ends[place] for place in spans],
            [ranked.scores[place] for place in spans],
            self._policy,
        )
        return [spans[row] for row in (kept if all_of_them else kept[:1])]

    def _mentions(self, spans: Iterable[int], kind: str | None = None) -> list[Mention]:
        """Return spans as parts of the text, without what lies behind it; with the attributes of entities of type ``kind``."""
        part, ranked = self._part, self._ranked
        made: dict[tuple[int, int], Mention] = {}
        for place in spans:
            start, end = ranked.starts[place], min(ranked.ends[place], self._end)
            if start >= end:
                continue
            attributes = self._attributes(ranked.rows[place], kind) if kind and self._schema.attributes else None
            mention = Mention(
                part.text[start:end], start + part.offset, end + part.offset, ranked.scores[place], attributes
            )
            made.setdefault((start, end), mention)
        return list(made.values())

    def _attributes(self, row: int, kind: str) -> dict[str, Label | list[Label]]:
        """Return the labels that an entity, a row of the candidates, has in each group for its type."""
        found = torch.from_numpy(self._found.candidates.attributes[row])
        made: dict[str, Label | list[Label]] = {}
        for group in self._schema.attributes:
            if group.types is not None and kind not in group.types:
                continue
            logits = found[[field - self._schema.types for field in group.fields]]
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
