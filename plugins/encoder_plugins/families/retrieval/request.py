"""Requests to retrievers of one vector per token: their types, and the checks that one field alone cannot state. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.inputs.body import Data, DtypeField, EncodingField
from encoder_plugins.inputs.text import TextLimits, check_texts, texts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalLimits(TextLimits):
    """The limits of requests; ``limits.LIMITS`` describes them."""

    queries: int
    documents: int
    score_bytes: int


class Request(Data, frozen=True):
    """Texts whose rows are wanted, or documents to score by queries."""

    text: Annotated[str | None, Meta(description="One text. Either this or `texts`.")] = None
    texts: Annotated[list[str] | None, Meta(description="Several texts; the answer keeps their order.")] = None
    input_type: Annotated[
        Literal["query", "document"] | None,
        Meta(
            description="What the texts are. Required with `text` and `texts`: a query's rows differ from a document's."
        ),
    ] = None
    is_query: Annotated[
        bool | None, Meta(description="true is `input_type` query, false is document; one of the two is required.")
    ] = None
    encoding: Annotated[
        EncodingField,
        Meta(
            description="float: each text's rows as lists of numbers. base64: each text's rows, one behind the other, as"
            " little-endian numbers in base64. bytes: the body is the rows of all texts and nothing else; X-Encoder-Shape,"
            " X-Encoder-Dtype and X-Encoder-Rows, the rows of each text, describe it."
        ),
    ] = "float"
    dtype: DtypeField = "float32"
    query: Annotated[str | None, Meta(description="Score `documents` by this query.")] = None
    queries: Annotated[list[str] | None, Meta(description="Score `documents` by each of these queries.")] = None
    documents: Annotated[list[str] | None, Meta(description="The documents to score.")] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Documents to return for each query, the best first; null returns all."),
    ] = None


class Usage(msgspec.Struct, frozen=True):
    """What a request cost."""

    prompt_tokens: int


class Embeddings(msgspec.Struct, frozen=True):
    """The rows of each text, in the order of the texts."""

    embeddings: list[list[list[float]] | str]
    rows: Annotated[list[int], Meta(description="Rows of each text.")]
    dimensions: int
    encoding: EncodingField
    usage: Usage


class Ranking(msgspec.Struct, frozen=True):
    """The documents of one query, the best first; of equal scores the first in the request."""

    indices: Annotated[list[int], Meta(description="Positions in `documents`.")]
    scores: Annotated[list[float], Meta(description="The score of each of `indices`.")]


class Scores(msgspec.Struct, frozen=True):
    """The documents of each query, in the order of the queries."""

    results: list[Ranking]
    usage: Usage


class RowsAnswer(msgspec.Struct, frozen=True):
    """The body of a response with rows."""

    data: Embeddings


class ScoresAnswer(msgspec.Struct, frozen=True):
    """The body of a response with scores."""

    data: Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts whose rows are wanted.

    Attributes:
        texts: The texts.
        path: The field that holds the text at a position, for messages.
        kind: What they are.
    """

    texts: Sequence[str]
    path: str
    kind: InputType


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Documents to score.

    Attributes:
        queries: The queries.
        documents: The documents.
        top_k: Documents to return for each query; None for all.
    """

    queries: Texts
    documents: Texts
    top_k: int | None


def check(data: Request, limits: RetrievalLimits) -> Texts | Scoring:
    """Return what a request wants.

    Raises:
        InvalidRequest: It wants nothing, or two things at once, or exceeds a limit.
    """
    scoring = [name for name in ("query", "queries", "documents", "top_k") if getattr(data, name) is not None]
    plain = [name for name in ("text", "texts", "input_type", "is_query") if getattr(data, name) is not None]
    if not scoring:
        return _texts(data, limits)
    if plain:
        raise InvalidRequest(
            f"{plain[0]} and {scoring[0]} are both there; send text or texts for rows, or query and documents for scores",
            param=f"data.{plain[0]}",
        )
    for name, default in (("encoding", "float"), ("dtype", "float32")):
        if getattr(data, name) != default:
            raise InvalidRequest(f"scores are numbers in JSON; leave {name} out", param=f"data.{name}")
    return _scoring(data, limits)


def _texts(data: Request, limits: RetrievalLimits) -> Texts:
    texts = texts_of(data.text, data.texts, limits)
    kind: InputType = "query" if data.is_query else "document"
    if data.input_type is None and data.is_query is None:
        raise InvalidRequest(
            "the field is required: query or document, whose rows differ for the same text", param="data.input_type"
        )
    if data.input_type is not None:
        if data.is_query is not None and data.input_type != kind:
            raise InvalidRequest(f"it contradicts input_type, which is {data.input_type}", param="data.is_query")
        kind = data.input_type
    return Texts(texts=texts, path="data.text" if data.texts is None else "data.texts[{}]", kind=kind)


def _scoring(data: Request, limits: RetrievalLimits) -> Scoring:
    if data.query is not None and data.queries is not None:
        raise InvalidRequest("query and queries are both there; send one of them", param="data.queries")
    if data.query is None and data.queries is None:
        raise InvalidRequest("neither query nor queries is there; send one of them", param="data.query")
    if data.documents is None:
        raise InvalidRequest("the field is required: the documents to score", param="data.documents")
    single = data.query is not None
    queries = [data.query] if data.query is not None else data.queries or []
    path = "data.query" if single else "data.queries"
    check_texts(queries, replace(limits, texts=limits.queries), path=path, single=single)
    check_texts(data.documents, replace(limits, texts=limits.documents), path="data.documents")
    return Scoring(
        queries=Texts(texts=queries, path=path if single else f"{path}[{{}}]", kind="query"),
        documents=Texts(texts=data.documents, path="data.documents[{}]", kind="document"),
        top_k=data.top_k,
    )
