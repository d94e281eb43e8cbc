"""The routes by which clients of other APIs have documents scored: reranking as of Cohere and Jina, and vLLM's ``/score``. Pure.

All of them come to ``scoring.Scoring``. A relevance score is the checkpoint's own, not squeezed into 0 to 1.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval.scoring import (
    Origin,
    Scoring,
    ScoringLimits,
    documents_of,
    queries_of,
    ranked,
    rankings,
)
from encoder_plugins.inputs.body import Data
from encoder_plugins.serving.processor import Schema

_ACCEPTED = "Accepted; without effect."
Accepted = Annotated[str | None, Meta(description=_ACCEPTED)]
Model = Annotated[
    str | None,
    Meta(
        description="What the server calls the model, or one of its LoRA adapters, as `lora`; it is checked if it is there."
    ),
]
Adapter = Annotated[
    str | None, Meta(description="The name of a LoRA adapter that the server was started with; null for none.")
]


class Document(Data, frozen=True):
    """A document as an object."""

    text: str


class RerankRequest(Data, frozen=True):
    """One query, and documents to rank by it: Cohere's request, and Jina's."""

    query: str
    documents: Annotated[list[str | Document], Meta(description="Texts, or objects with a `text`.")]
    model: Model = None
    top_n: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Documents to return, the best first; null returns all.")
    ] = None
    return_documents: Annotated[bool | None, Meta(description="Whether each result repeats its document.")] = None
    max_tokens_per_doc: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Accepted where it is not below the number of tokens after which documents are cut anyway."),
    ] = None
    rank_fields: Annotated[
        list[Literal["text"]] | None, Meta(description="Accepted: the only field of a document is `text`.")
    ] = None
    max_chunks_per_doc: Annotated[Literal[1] | None, Meta(description="Accepted: a document is one chunk.")] = None
    truncation: Annotated[
        bool | None, Meta(description="Accepted unless false: documents that are too long are cut.")
    ] = None
    priority: Annotated[int | None, Meta(description=_ACCEPTED)] = None
    user: Accepted = None
    lora: Adapter = None


class RerankResult(msgspec.Struct, frozen=True):
    """One document."""

    index: Annotated[int, Meta(description="Its position in the request.")]
    relevance_score: float
    document: Annotated[Document | UnsetType, Meta(description="Only where the request has `return_documents`.")] = (
        UNSET
    )


class TotalUsage(msgspec.Struct, frozen=True):
    """What a request cost, in the words of OpenAI and Jina."""

    prompt_tokens: int
    total_tokens: int


class Tokens(msgspec.Struct, frozen=True):
    """What a request cost, in Cohere's words."""

    input_tokens: int


class Version(msgspec.Struct, frozen=True):
    """The version of Cohere's API whose shape this is."""

    version: str = "2"


class RerankMeta(msgspec.Struct, frozen=True):
    """What Cohere's clients read of a response."""

    tokens: Tokens
    api_version: Version = Version()


class RerankResponse(msgspec.Struct, frozen=True):
    """The documents, the best first; of equal scores the first in the request."""

    id: str
    model: str
    results: list[RerankResult]
    usage: TotalUsage
    meta: RerankMeta


TextOrTexts = str | list[str]


class ScoreRequest(Data, frozen=True):
    """vLLM's request for scores: one text against several, or as many against as many, pair by pair."""

    text_1: Annotated[TextOrTexts | None, Meta(description="The query, or one for each of `text_2`.")] = None
    text_2: Annotated[TextOrTexts | None, Meta(description="The documents.")] = None
    queries: Annotated[TextOrTexts | None, Meta(description="The same as `text_1`.")] = None
    documents: Annotated[TextOrTexts | None, Meta(description="The same as `text_2`.")] = None
    model: Model = None
    priority: Annotated[Literal[0], Meta(description=_ACCEPTED)] = 0
    request_id: Accepted = None
    user: Accepted = None
    lora: Adapter = None


class Score(msgspec.Struct, frozen=True):
    """The score of one pair."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(msgspec.Struct, frozen=True):
    """vLLM's response."""

    id: str
    created: Annotated[int, Meta(description="Seconds since 1970.")]
    model: str
    data: list[Score]
    usage: TotalUsage
    object: Literal["list"] = "list"


SCHEMAS = {"rerank": Schema(RerankRequest, RerankResponse), "score": Schema(ScoreRequest, ScoreResponse)}


def check_rerank(data: RerankRequest, limits: ScoringLimits, *, most_tokens: int | None) -> Scoring:
    """Return what a reranking wants scored.

    Args:
        data: The request.
        limits: What it is held to.
        most_tokens: Tokens after which documents are cut; None where they are not.

    Raises:
        InvalidRequest: It exceeds a limit, or requests something that is not done.
    """
    if data.max_tokens_per_doc is not None and (most_tokens is None or data.max_tokens_per_doc < most_tokens):
        cut = "are not cut" if most_tokens is None else f"are cut after {most_tokens} tokens, and never earlier"
        raise InvalidRequest(f"documents {cut}; leave the field out", param="max_tokens_per_doc")
    if data.truncation is False:
        raise InvalidRequest("documents that are too long are cut; leave the field out", param="truncation")
    texts = [document if isinstance(document, str) else document.text for document in data.documents]
    return Scoring(
        queries=queries_of(data.query, limits, path="query"),
        documents=documents_of(texts, limits, path="documents"),
        shape="rerank",
        top_k=data.top_n,
        return_documents=bool(data.return_documents),
    )


def check_score(data: ScoreRequest, limits: ScoringLimits) -> Scoring:
    """Return what a request for scores wants scored.

    Raises:
        InvalidRequest: The texts do not correspond, or exceed a limit.
    """
    first, left = _one_of(data, "text_1", "queries")
    second, right = _one_of(data, "text_2", "documents")
    if (first == "text_1") != (second == "text_2"):
        raise InvalidRequest(f"{first} and {second} do not belong together", param=second)
    several = isinstance(left, list) and len(left) != 1
    if several and (not isinstance(right, list) or len(left) != len(right)):
        count = len(right) if isinstance(right, list) else 1
        raise InvalidRequest(f"{len(left)} texts, and {count} in {second}; send one, or as many as there", param=first)
    documents = documents_of(right, limits, path=second)
    # pairs are no more work than one query for as many documents
    queries = queries_of(left, replace(limits, queries=limits.documents) if several else limits, path=first)
    return Scoring(queries=queries, documents=documents, pairs=several, shape="score")


def microseconds(request: Scoring) -> int:
    """Return about how long it takes to write the answer."""
    documents, queries = request.documents.texts, request.queries.texts
    scores = len(documents) * (1 if request.pairs else len(queries))
    repeated = sum(map(len, documents)) // 500 if request.return_documents else 0
    return 2 * len(documents) + scores + repeated


def answer(request: Scoring, scores: NDArray[np.float32], *, tokens: int, name: str) -> bytes:
    """Return the body of the answer, in the shape that the request came in.

    Args:
        request: The request.
        scores: `[queries, documents]`; for pairs `[1, pairs]`.
        tokens: Those that the engine read.
        name: What the server calls the model.
    """
    usage = {"prompt_tokens": tokens}
    if request.shape == "pooling":
        return msgspec.json.encode(
            {"data": {"results": rankings(scores, request.top_k, request.origins), "usage": usage}}
        )
    usage["total_tokens"] = tokens
    if request.shape == "score":
        found = [
            {"index": index, "object": "score", "score": score} for index, score in enumerate(scores.ravel().tolist())
        ]
        return msgspec.json.encode(
            {
                "id": f"score-{secrets.token_hex(16)}",
                "object": "list",
                "created": int(time.time()),
                "model": name,
                "data": found,
                "usage": usage,
            }
        )
    indices, values = ranked(scores[0], request.top_k)
    results: list[dict[str, Any]] = [
        {**_place(index, request.origins), "relevance_score": value}
        for index, value in zip(indices, values, strict=True)
    ]
    if request.return_documents:
        for result in results:
            result["document"] = {"text": request.documents.texts[result["index"]]}
    return msgspec.json.encode(
        {
            "id": secrets.token_hex(16),
            "model": name,
            "results": results,
            "usage": usage,
            "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}},
        }
    )


def _place(index: int, origins: Sequence[Origin] | None) -> dict[str, int]:
    if origins is None:
        return {"index": index}
    origin = origins[index]
    # clients look their own document up by its index, which therefore is that of the PDF
    return {"index": origin.document, **({} if origin.page is None else {"page": origin.page})}


def _one_of(data: ScoreRequest, *names: str) -> tuple[str, str | list[str]]:
    given = [(name, value) for name in names if (value := getattr(data, name)) is not None]
    if not given:
        raise InvalidRequest(f"neither {' nor '.join(names)} is there; send one of them", param=names[0])
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(names)} are both there; send one of them", param=names[1])
    return given[0]
