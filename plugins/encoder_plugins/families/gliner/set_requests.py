"""Requests that name a label set of the model in place of labels, and the vectors of its sets before the first request.

Everything else is the other requests': ``rerank`` and ``linking``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import label_sets, payload
from encoder_plugins.families.gliner.label_runs import BiPromptBuilder
from encoder_plugins.families.gliner.label_sets import LabelSet
from encoder_plugins.families.gliner.prompt import Labels
from encoder_plugins.families.gliner.request import Entity, EntityRequest
from encoder_plugins.families.gliner.rerank import Candidate, CandidatesProcessor, CandidatesRequest
from encoder_plugins.serving.processor import Engine, Prompt, ServingContext

START_SECONDS = 60.0
"""For so long, vectors are made before the first request. Those that are missing then are made when they are used."""

# tokens of labels that the engine gets at once: some passes of the encoder, between which it can do something else
_START_TOKENS = 4096
# of a client's own text in a message
_SHOWN = 80

_FIELD = "data.label_set"
_CANDIDATES = "data.candidates_per_text"


SetCandidates: TypeAlias = Annotated[
    list[list[Candidate | str]],
    Meta(
        description="One list of candidates for each text, instead of `labels` and `labels_per_text`. The labels of a list are"
        " different from each other. With `label_set` a candidate is an id of the set, and nothing else."
    ),
]


class SetRequest(CandidatesRequest, frozen=True):
    """Texts, the labels or candidates of entities to find in them, and how to choose among what is found."""

    label_set: Annotated[
        str | None,
        Meta(
            description="A label set that the model was prepared with, in place of `labels`. Entities come with the `id` of"
            " their label. With `candidates_per_text` a text has those labels of the set whose ids are listed for it;"
            " without it all of them."
        ),
    ] = None
    # more than the base's field can hold; what reads that one never sees a request with a set
    candidates_per_text: SetCandidates | None = None  # type: ignore[assignment]


class SetProcessor(CandidatesProcessor):
    """Serves entities among the labels of the sets that the model was prepared with, too."""

    _builder: BiPromptBuilder

    def __init__(self, context: ServingContext) -> None:
        super().__init__(context)
        self._sets = label_sets.read(context.label_sets, self._builder)

    async def start(self, engine: Engine, *, seconds: float = START_SECONDS) -> Sequence[str]:
        """Have the vectors of the sets made that the engine has room for; return a sentence about each set."""
        number_bytes = 4 if self._context.dtype == "float32" else 2
        room = payload.LABEL_CACHE_BYTES // (self._config.hidden_size * number_bytes)
        end, sentences = time.monotonic() + seconds, list[str]()
        # a large set leaves no room for others
        for chosen in sorted(self._sets.values(), key=len):
            made, most = 0, min(len(chosen), room)
            room -= most
            for numbers in slices(chosen.lengths[:most]):
                if time.monotonic() > end:
                    break
                runs = [chosen.run(number) for number in numbers.tolist()]
                await engine.encode([Prompt(token_ids=[0], parameters=payload.encode_labels(runs))])
                made += len(runs)
            why = "" if made == len(chosen) else f"; {most} fit into the cache" if made == most else "; time was up"
            sentences.append(f"Label set {chosen.name}: {made} of {len(chosen)} labels are encoded{why}")
        return sentences

    def label_lists(self, data: EntityRequest, texts: int) -> list[tuple[str, ...]]:
        """Return each text's labels: of a set, of its candidates, or its own."""
        chosen = self._chosen_set(data)
        lists = data.candidates_per_text if isinstance(data, SetRequest) else None
        if chosen is None:
            for position, candidates in enumerate(lists or ()):
                for number, candidate in enumerate(candidates):
                    if isinstance(candidate, str):
                        raise InvalidRequest(
                            "an id without a label needs label_set; expected an object with id and label",
                            param=f"{_CANDIDATES}[{position}][{number}]",
                        )
            return super().label_lists(data, texts)
        for name in ("labels", "labels_per_text", "label_vectors"):
            if getattr(data, name, None) is not None:
                raise InvalidRequest(f"{name} and label_set are both there; send one of them", param=_FIELD)
        if lists is None:
            if len(chosen) > self.limits.labels:
                raise InvalidRequest(
                    f"the label set {chosen.name} has {len(chosen)} labels; the limit is {self.limits.labels} labels of one"
                    " text: send the ids of those that a text may have, in candidates_per_text",
                    param=_FIELD,
                )
            return [chosen.names] * texts
        if len(lists) != texts:
            raise InvalidRequest(f"{len(lists)} lists of candidates for {texts} texts", param=_CANDIDATES)
        return self._named_by_ids(chosen, lists)

    def _chosen_set(self, data: EntityRequest) -> LabelSet | None:
        """Return the set that a request names; raises InvalidRequest where the model has no such set."""
        name = data.label_set if isinstance(data, SetRequest) else None
        if name is None:
            return None
        if (found := self._sets.get(name)) is None:
            there = f"it has {', '.join(self._sets)}" if self._sets else "it was prepared without any"
            raise InvalidRequest(f"the model has no label set {name[:_SHOWN]!r}; {there}", param=_FIELD)
        return found

    def _named_by_ids(self, chosen: LabelSet, lists: Sequence[Sequence[Candidate | str]]) -> list[tuple[str, ...]]:
        """Return the labels behind the ids of each list, every one once."""
        found: list[tuple[str, ...]] = []
        different: set[int] = set()
        for position, candidates in enumerate(lists):
            path = f"{_CANDIDATES}[{position}]"
            if len(candidates) > self.limits.labels:
                raise InvalidRequest(
                    f"{len(candidates)} candidates; the limit is {self.limits.labels} labels", param=path
                )
            ids = [candidate for candidate in candidates if isinstance(candidate, str)]
            if len(ids) < len(candidates):
                number = next(number for number, one in enumerate(candidates) if not isinstance(one, str))
                raise InvalidRequest(
                    f"with label_set a candidate is an id of the set {chosen.name}, as a text",
                    param=f"{path}[{number}]",
                )
            numbers = list(dict.fromkeys(chosen.ids.find(ids)))
            if -1 in numbers:
                number = chosen.ids.find(ids).index(-1)
                raise InvalidRequest(
                    f"the label set {chosen.name} has no id {ids[number][:_SHOWN]!r}", param=f"{path}[{number}]"
                )
            different.update(numbers)
            if len(different) > self.limits.labels:
                raise InvalidRequest(f"more than {self.limits.labels} different labels, the limit", param=_CANDIDATES)
            found.append(tuple(chosen.texts[number] for number in numbers))
        return found

    def _labels(self, data: EntityRequest, position: int, names: tuple[str, ...]) -> Labels:
        chosen = self._chosen_set(data)
        return super()._labels(data, position, names) if chosen is None else chosen.labels(names)

    def named(self, data: EntityRequest, position: int, entities: list[Entity]) -> list[Entity]:
        """Return the entities of a text with the ids of their labels."""
        if (chosen := self._chosen_set(data)) is None:
            return super().named(data, position, entities)
        numbers = chosen.texts.find([entity.label for entity in entities])
        return [
            msgspec.structs.replace(entity, id=chosen.ids[number])
            for entity, number in zip(entities, numbers, strict=True)
        ]


def slices(lengths: NDArray[np.int64], most_tokens: int = _START_TOKENS) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of labels to encode at once, so that those of one length come together, as the encoder takes them.

    Args:
        lengths: The tokens of each label.
        most_tokens: Tokens of one slice; a label with more is alone.
    """
    order = np.argsort(lengths, kind="stable")
    begin = tokens = 0
    for place, length in enumerate(lengths[order].tolist()):
        if place > begin and tokens + length > most_tokens:
            yield order[begin:place]
            begin, tokens = place, 0
        tokens += length
    if begin < len(order):
        yield order[begin:]
