"""Documents scored by queries: what every shape of request for it comes to, and the answer of ``/pooling``. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.inputs.text import TextLimits, check_texts

Shape: TypeAlias = Literal["pooling", "rerank", "score"]

# the fields that make a request of ``/pooling`` one for scores
FIELDS = ("query", "queries", "documents", "top_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringLimits(TextLimits):
    """The limits of requests for scores; ``limits.SCORING_LIMITS`` describes them."""

    queries: int
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of one kind.

    Attributes:
        texts: The texts.
        path: The field that holds the text at a position, for messages.
        kind: What they are.
        first: The position in the request of the first of them.
        prompt: What is put before each of them; None for the prompt of their kind.
    """

    texts: Sequence[str]
    path: str
    kind: InputType
    first: int = 0
    prompt: str | None = None

    def where(self, position: int) -> str:
        """Return the field that holds the text at a position of ``texts``."""
        return self.path.format(self.first + position)

    def parts(self, characters: int) -> list[Texts]:
        """Return the same texts in parts that end with the text that makes them ``characters`` long."""
        found: list[Texts] = []
        start = length = 0
        for end, text in enumerate(self.texts, 1):
            length += len(text)
            if length >= characters or end == len(self.texts):
                found.append(replace(self, texts=self.texts[start:end], first=self.first + start))
                start, length = end, 0
        return found


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something that was scored comes from.

    Attributes:
        document: Its position among the documents of the request.
        page: Which page of that document it is, from 1; None where it is all of it.
    """

    document: int
    page: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Documents to score.

    Attributes:
        queries: The queries.
        documents: The documents.
        pairs: Whether each query scores the one document at its own position, instead of all documents.
        shape: Which shape the answer has.
        top_k: Documents to return for each query; None for all.
        return_documents: Whether the answer of a reranking repeats the documents.
        origins: What was scored, in its order, where documents have pages that are scored one by one; None where each document is one.
    """

    queries: Texts
    documents: Texts
    pairs: bool = False
    shape: Shape = "pooling"
    top_k: int | None = None
    return_documents: bool = False
    origins: Sequence[Origin] | None = None


class Usage(msgspec.Struct, frozen=True):
    """What a request cost."""

    prompt_tokens: int


class Ranking(msgspec.Struct, frozen=True):
    """The documents of one query, the best first; of equal scores the first in the request."""

    indices: Annotated[list[int], Meta(description="Positions in `documents`.")]
    scores: Annotated[list[float], Meta(description="The score of each of `indices`.")]


class Scores(msgspec.Struct, frozen=True):
    """The documents of each query, in the order of the queries."""

    results: list[Ranking]
    usage: Usage


class ScoresAnswer(msgspec.Struct, frozen=True):
    """The body of a response with scores."""

    data: Scores


def check(data: Any, limits: ScoringLimits, *, others: Sequence[str] = ()) -> Scoring | None:
    """Return what a request of ``/pooling`` wants scored; None where it wants no scores.

    Args:
        data: A request with the fields of ``FIELDS``.
        limits: What it is held to.
        others: Fields that a request for scores does not have; their defaults are null, false or the schema's.

    Raises:
        InvalidRequest: It wants two things at once, or exceeds a limit.
    """
    wanted = [name for name in FIELDS if getattr(data, name) is not None]
    if not wanted:
        return None
    defaults = {field.name: field.default for field in msgspec.structs.fields(type(data))}
    for name in others:
        if getattr(data, name) != defaults[name]:
            raise InvalidRequest(
                f"{name} and {wanted[0]} are both there; a request for scores has only {', '.join(FIELDS)}",
                param=f"data.{name}",
            )
    if data.query is not None and data.queries is not None:
        raise InvalidRequest("query and queries are both there; send one of them", param="data.queries")
    if data.query is None and data.queries is None:
        raise InvalidRequest("neither query nor queries is there; send one of them", param="data.query")
    if data.documents is None:
        raise InvalidRequest("the field is required: the documents to score", param="data.documents")
    name, given = ("query", data.query) if data.query is not None else ("queries", data.queries)
    return Scoring(
        queries=queries_of(given, limits, path=f"data.{name}"),
        documents=documents_of(data.documents, limits, path="data.documents"),
        top_k=data.top_k,
    )


def queries_of(given: str | Sequence[str], limits: ScoringLimits, *, path: str) -> Texts:
    """Return checked queries of the field ``path``.

    Raises:
        InvalidRequest: They exceed a limit, or one of them is not a text.
    """
    single = isinstance(given, str)
    texts = [given] if isinstance(given, str) else list(given)
    check_texts(texts, replace(limits, texts=limits.queries), path=path, single=single)
    return Texts(texts=texts, path=path if single else f"{path}[{{}}]", kind="query")


def documents_of(given: str | Sequence[str], limits: ScoringLimits, *, path: str) -> Texts:
    """Return checked documents of the field ``path``; raises as ``queries_of`` does."""
    single = isinstance(given, str)
    texts = [given] if isinstance(given, str) else list(given)
    check_texts(texts, replace(limits, texts=limits.documents), path=path, single=single)
    return Texts(texts=texts, path=path if single else f"{path}[{{}}]", kind="document")


def list_of(texts: Texts) -> str:
    """Return the field that holds all of the texts."""
    return texts.path.removesuffix("[{}]")


def ranked(scores: NDArray[np.float32], top_k: int | None) -> tuple[list[int], list[float]]:
    """Return positions and scores of the best documents; of equal scores the first document comes first.

    Args:
        scores: `[documents]`
        top_k: How many; None for all.
    """
    best = np.argsort(-scores, kind="stable")[:top_k]
    return best.tolist(), scores[best].tolist()


def rankings(
    scores: NDArray[np.float32], top_k: int | None, origins: Sequence[Origin] | None = None
) -> list[dict[str, Any]]:
    """Return the results of ``/pooling`` for scores `[queries, documents]`, whose columns come from ``origins``; None as in ``Scoring``."""
    found = []
    for each in scores:
        indices, values = ranked(each, top_k)
        result: dict[str, Any] = {"indices": indices, "scores": values}
        if origins is not None:
            result["indices"] = [origins[index].document for index in indices]
            result["pages"] = [origins[index].page for index in indices]
        found.append(result)
    return found
