"""Requests to retrievers of one vector per token: their types, and the checks that one field alone cannot state. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval.fields import (
    DocumentsField,
    EmbeddingDtypeField,
    IsQueryField,
    QueriesField,
    QueryField,
    TopKField,
    side_of,
)
from encoder_plugins.families.retrieval.prompts import Prompts, side_of_prompt
from encoder_plugins.families.retrieval.scoring import FIELDS, Scoring, ScoringLimits, Texts, Usage
from encoder_plugins.families.retrieval.scoring import check as check_scoring
from encoder_plugins.families.retrieval.token_pooling import MOST_FACTOR
from encoder_plugins.inputs.body import Data, EncodingField
from encoder_plugins.inputs.encodings import EmbeddingDtype
from encoder_plugins.inputs.text import texts_of

# what a request for scores does not have
ROWS_FIELDS = (
    *("text", "texts", "input_type", "is_query", "encoding", "embedding_dtype", "dimensions", "pool_factor"),
    "return_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalLimits(ScoringLimits):
    """The limits of requests; ``limits.LIMITS`` describes them."""

    score_bytes: int
    pooled_rows: int


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
    is_query: IsQueryField = None
    encoding: Annotated[
        EncodingField,
        Meta(
            description="float: each text's rows as lists of numbers. base64: each text's rows, one behind the other, as"
            " little-endian numbers in base64. bytes: the body is the rows of all texts and nothing else; X-Encoder-Shape,"
            " X-Encoder-Dtype and X-Encoder-Rows, the rows of each text, describe it."
        ),
    ] = "float"
    embedding_dtype: EmbeddingDtypeField = "float32"
    dimensions: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Numbers to keep of each row, which then has length 1 again; null keeps all."),
    ] = None
    pool_factor: Annotated[
        Annotated[float, Meta(ge=1, le=MOST_FACTOR)] | None,
        Meta(
            description="Documents only: about 1 / `pool_factor` of the rows are returned, each the mean of rows that are alike."
        ),
    ] = None
    return_tokens: Annotated[
        bool,
        Meta(description="Whether the answer has the tokens of the rows, too; in JSON, and without `pool_factor`."),
    ] = False
    query: QueryField = None
    queries: QueriesField = None
    documents: DocumentsField = None
    top_k: TopKField = None


class TextRequest(Request, frozen=True):
    """Texts whose rows are wanted, or documents to score by queries; the checkpoint has prompts by name."""

    prompt_name: Annotated[
        str | None,
        Meta(
            description="A prompt of the checkpoint, put before each text; null takes that of `input_type`. query, document, passage"
            " and corpus say what the texts are, too, where `input_type` does not."
        ),
    ] = None


class RowTokens(msgspec.Struct, frozen=True):
    """The tokens of a text's rows, in the order of the rows."""

    ids: list[int]
    tokens: list[str]


class Embeddings(msgspec.Struct, frozen=True):
    """The rows of each text, in the order of the texts."""

    embeddings: list[list[list[float]] | str]
    rows: Annotated[list[int], Meta(description="Rows of each text.")]
    dimensions: Annotated[int, Meta(description="Numbers of each row, before signs are packed.")]
    encoding: EncodingField
    embedding_dtype: EmbeddingDtype
    usage: Usage
    tokens: Annotated[
        list[RowTokens] | UnsetType, Meta(description="The tokens of each text's rows, where `return_tokens` is true.")
    ] = UNSET


class RowsAnswer(msgspec.Struct, frozen=True):
    """The body of a response with rows."""

    data: Embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How rows are returned.

    Attributes:
        encoding: How they are written.
        dtype: Their numbers.
        dimensions: Numbers to keep of each; None keeps all.
        pool_factor: By what a document's rows become fewer; None leaves them.
        tokens: Whether their tokens are returned, too.
    """

    encoding: Literal["float", "base64", "bytes"] = "float"
    dtype: EmbeddingDtype = "float32"
    dimensions: int | None = None
    pool_factor: float | None = None
    tokens: bool = False


def check(data: Request, limits: RetrievalLimits) -> tuple[Texts, Wanted] | Scoring:
    """Return what a request wants.

    Raises:
        InvalidRequest: It wants nothing, or two things at once, or exceeds a limit.
    """
    scoring = check_scoring(data, limits, others=ROWS_FIELDS)
    if scoring is not None:
        return scoring
    texts = texts_of(data.text, data.texts, limits)
    return rows_wanted(data, texts, path="data.text" if data.texts is None else "data.texts[{}]")


def check_prompted(
    data: TextRequest, limits: RetrievalLimits, prompts: Mapping[str, str]
) -> tuple[Texts, Wanted] | Scoring:
    """Return what a request wants that may name a prompt.

    Args:
        data: The request.
        limits: What it is held to.
        prompts: The checkpoint's prompts by name; empty where prep did not write them.

    Raises:
        InvalidRequest: As ``check`` does, and where there is no such prompt, or nothing says what its texts are.
    """
    name = data.prompt_name
    if name is None:
        return check(data, limits)
    if any(getattr(data, field) is not None for field in FIELDS):
        raise InvalidRequest(
            "scores are those of the checkpoint's prompts for queries and documents; leave the field out",
            param="data.prompt_name",
        )
    if not prompts:
        raise InvalidRequest(
            "the artifact was prepared without the checkpoint's prompts; prepare the model again",
            param="data.prompt_name",
        )
    prompt = Prompts(texts=prompts).choose(prompt_name=name, path="data.")
    if data.input_type is None and data.is_query is None:
        side = side_of_prompt(name)
        if side is None:
            raise InvalidRequest(
                f"the field is required beside the prompt {name!r}: query or document, whose rows differ for the same text",
                param="data.input_type",
            )
        data = msgspec.structs.replace(data, input_type=side)
    checked = check(data, limits)
    assert not isinstance(checked, Scoring)
    texts, wanted = checked
    return replace(texts, prompt=prompt), wanted


def rows_wanted(data: Request, texts: Sequence[str], *, path: str) -> tuple[Texts, Wanted]:
    """Return the texts of a request whose rows are wanted, and how.

    Args:
        data: The request.
        texts: Its texts, which are checked.
        path: The field that holds the text at a position.

    Raises:
        InvalidRequest: It wants two things at once.
    """
    kind = side_of(data.input_type, data.is_query)
    if kind is None:
        raise InvalidRequest(
            "the field is required: query or document, whose rows differ for the same text", param="data.input_type"
        )
    if data.pool_factor is not None and kind == "query":
        raise InvalidRequest("only the rows of documents are merged; leave the field out", param="data.pool_factor")
    if data.return_tokens and data.pool_factor is not None:
        raise InvalidRequest("rows that are merged have no token; leave out pool_factor", param="data.return_tokens")
    if data.return_tokens and data.encoding == "bytes":
        raise InvalidRequest("a body of numbers has no place for tokens; use base64", param="data.return_tokens")
    wanted = Wanted(
        encoding=data.encoding,
        dtype=data.embedding_dtype,
        dimensions=data.dimensions,
        pool_factor=data.pool_factor,
        tokens=data.return_tokens,
    )
    return Texts(texts=texts, path=path, kind=kind), wanted
