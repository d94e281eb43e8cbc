"""The shapes of requests for one vector per text, and of their answers: those of ``/pooling`` and of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.families.retrieval.fields import (
    DocumentsField,
    EmbeddingDtypeField,
    IsQueryField,
    QueriesField,
    QueryField,
    TopKField,
)
from encoder_plugins.families.retrieval.scoring import Usage
from encoder_plugins.inputs.body import Data, EncodingField
from encoder_plugins.inputs.encodings import EmbeddingDtype

InputTypeField = Annotated[
    InputType | None,
    Meta(description="query or document: the prompt that the checkpoint has for this side of retrieval."),
]
PromptNameField = Annotated[
    str | None,
    Meta(description="A prompt of the checkpoint, put before each text; null takes the checkpoint's default prompt."),
]
# what a request for scores does not have
VECTOR_FIELDS = (
    *("text", "texts", "prompt_name", "input_type", "is_query", "dimensions", "normalize", "encoding"),
    "embedding_dtype",
)
Dimensions = Annotated[int, Meta(ge=1)]


class Request(Data, frozen=True):
    """One text or several, and what their vectors should be like; or documents to score by queries."""

    text: Annotated[str | None, Meta(description="One text. Either this or `texts`.")] = None
    texts: Annotated[list[str] | None, Meta(description="Several texts; the answer keeps their order.")] = None
    prompt_name: PromptNameField = None
    input_type: InputTypeField = None
    is_query: IsQueryField = None
    dimensions: Annotated[
        Dimensions | None,
        Meta(
            description="Numbers to keep of each vector (Matryoshka embeddings); null keeps the checkpoint's `truncate_dim`, or all."
        ),
    ] = None
    normalize: Annotated[
        bool | None,
        Meta(
            description="true: vectors of length 1. false: without the checkpoint's Normalize module. null: as the"
            " checkpoint is configured."
        ),
    ] = None
    encoding: EncodingField = "float"
    embedding_dtype: EmbeddingDtypeField = "float32"
    query: QueryField = None
    queries: QueriesField = None
    documents: DocumentsField = None
    top_k: TopKField = None


class Embeddings(msgspec.Struct, frozen=True):
    """The vectors of a request, in the order of its texts."""

    embeddings: list[list[float] | str]
    rows: Annotated[list[int], Meta(description="Vectors of each text, which is 1.")]
    dimensions: Annotated[int, Meta(description="Numbers of each vector, before signs are packed.")]
    encoding: EncodingField
    embedding_dtype: EmbeddingDtype
    usage: Usage


class Answer(msgspec.Struct, frozen=True):
    """The body of a response."""

    data: Embeddings


class EmbeddingsRequest(Data, frozen=True):
    """OpenAI's request for embeddings, and the choice of a prompt."""

    input: Annotated[
        str | list[str | int | list[int]], Meta(description="One text or a list of texts; token ids are refused.")
    ]
    model: Annotated[str | None, Meta(description="What the server calls the model, or one of its LoRA adapters.")] = (
        None
    )
    dimensions: Annotated[
        Dimensions | None,
        Meta(description="Numbers to keep of each vector; null keeps the checkpoint's `truncate_dim`, or all."),
    ] = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(
            description="float: lists of numbers. base64: each vector's little-endian float32 numbers in base64. null is the same"
            " as float."
        ),
    ] = "float"
    user: Annotated[str | None, Meta(description="Accepted; without effect.")] = None
    input_type: InputTypeField = None
    prompt_name: PromptNameField = None


class Embedding(msgspec.Struct, frozen=True):
    """One vector of OpenAI's response."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class OpenAIUsage(msgspec.Struct, frozen=True):
    """What a request cost, in OpenAI's words."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(msgspec.Struct, frozen=True):
    """OpenAI's response."""

    data: list[Embedding]
    model: str
    usage: OpenAIUsage
    object: Literal["list"] = "list"
