"""Requests for entities among candidates: labels with an id each, many of them read in groups.

Everything else is the other GLiNER plugins': ``processor``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import request
from encoder_plugins.families.gliner.processor import GlinerProcessor
from encoder_plugins.families.gliner.request import Body, Entity, EntityRequest, SingleBody
from encoder_plugins.inputs.body import Data, Envelope
from encoder_plugins.serving.processor import Schema

Count = Annotated[int, Meta(ge=1)]


class Candidate(Data, frozen=True):
    """What a part of a text may mean."""

    id: Annotated[str, Meta(description="Comes back with each entity that has this label.")]
    label: Annotated[str, Meta(description="The label, in your own words.")]


class CandidatesRequest(EntityRequest, frozen=True):
    """Texts, the labels or candidates of entities to find in them, and how to choose among what is found."""

    candidates_per_text: Annotated[
        list[list[Candidate]] | None,
        Meta(
            description="One list of candidates for each text, instead of `labels` and `labels_per_text`. The labels of a"
            " list are different from each other."
        ),
    ] = None


class RerankRequest(CandidatesRequest, frozen=True):
    """Texts, the labels or candidates of entities to find in them, and how to choose among what is found."""

    max_labels: Annotated[
        Count | None,
        Meta(
            description="Labels that are read with a text at once. More are read in groups, in order; the entities of all"
            " groups then compete by the same rules as those of one. Without it all labels are read at once.",
        ),
    ] = None


class CandidatesProcessor(GlinerProcessor):
    """Serves the entities of one token-level GLiNER checkpoint, and candidates with ids."""

    schemas: ClassVar[Mapping[str, Schema]] = {"pooling": Schema(Envelope[CandidatesRequest], SingleBody, Body)}
    envelope: ClassVar[Any] = Envelope[CandidatesRequest]

    def label_lists(self, data: EntityRequest, texts: int) -> list[tuple[str, ...]]:
        """Return each text's labels, those of its candidates if it has any."""
        lists = _candidates(data)
        if lists is None:
            return super().label_lists(data, texts)
        for name in ("labels", "labels_per_text"):
            if getattr(data, name) is not None:
                raise InvalidRequest(
                    f"{name} and candidates_per_text are both there; send one of them", param="data.candidates_per_text"
                )
        if len(lists) != texts:
            raise InvalidRequest(
                f"{len(lists)} lists of candidates for {texts} texts", param="data.candidates_per_text"
            )
        for position, candidates in enumerate(lists):
            self._check(candidates, f"data.candidates_per_text[{position}]")
        labels = [tuple(candidate.label for candidate in candidates) for candidates in lists]
        if (different := len({label for names in labels for label in names})) > self.limits.labels:
            raise InvalidRequest(
                f"{different} different labels; the limit is {self.limits.labels}", param="data.candidates_per_text"
            )
        return labels

    def _check(self, candidates: Sequence[Candidate], path: str) -> None:
        labels = [candidate.label for candidate in candidates]
        try:
            different = request.unique(labels, path, self.limits)
        except InvalidRequest as error:
            # of one label; of all of them the path is that of the list
            raise InvalidRequest(
                error.message, param=error.param if error.param == path else f"{error.param}.label"
            ) from None
        seen: set[str] = set()
        for number, candidate in enumerate(candidates):
            if len(candidate.id) > self.limits.label_characters:
                raise InvalidRequest(
                    f"{len(candidate.id)} characters; the limit is {self.limits.label_characters} an id",
                    param=f"{path}[{number}].id",
                )
            if len(different) < len(labels) and candidate.label in seen:
                raise InvalidRequest(
                    "another candidate of this text has the same label, so that an entity would have two ids",
                    param=f"{path}[{number}].label",
                )
            seen.add(candidate.label)

    def label_path(self, data: EntityRequest, text: int, label: str) -> str:
        """Return the field of ``label`` among the labels or candidates of a text."""
        lists = _candidates(data)
        if lists is None:
            return super().label_path(data, text, label)
        number = [candidate.label for candidate in lists[text]].index(label)
        return f"data.candidates_per_text[{text}][{number}].label"

    def labels_path(self, data: EntityRequest, text: int) -> str:
        """Return the field of the labels or candidates of a text."""
        return super().labels_path(data, text) if _candidates(data) is None else f"data.candidates_per_text[{text}]"

    def named(self, data: EntityRequest, position: int, entities: list[Entity]) -> list[Entity]:
        """Return the entities of a text with the ids of their candidates."""
        lists = _candidates(data)
        if lists is None:
            return entities
        ids = {candidate.label: candidate.id for candidate in lists[position]}
        return [msgspec.structs.replace(entity, id=ids[entity.label]) for entity in entities]


class RerankProcessor(CandidatesProcessor):
    """Serves the same, and reads many labels in groups."""

    schemas: ClassVar[Mapping[str, Schema]] = {"pooling": Schema(Envelope[RerankRequest], SingleBody, Body)}
    envelope: ClassVar[Any] = Envelope[RerankRequest]

    def groups(self, data: EntityRequest, names: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
        """Return the labels of a text that are read with it at once, in order."""
        most = data.max_labels if isinstance(data, RerankRequest) else None
        if most is None or len(names) <= most:
            return [names]
        return [names[first : first + most] for first in range(0, len(names), most)]


def _candidates(data: EntityRequest) -> list[list[Candidate]] | None:
    return data.candidates_per_text if isinstance(data, CandidatesRequest) else None
