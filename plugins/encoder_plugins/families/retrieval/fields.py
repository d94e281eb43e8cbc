"""The fields that requests for embeddings have in common, be they of one vector per text or of one per token. Pure."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.inputs.encodings import EmbeddingDtype

IsQueryField: TypeAlias = Annotated[
    bool | None, Meta(description="true is the same as `input_type` query, false the same as document.")
]
EmbeddingDtypeField: TypeAlias = Annotated[
    EmbeddingDtype,
    Meta(
        description="The numbers of the answer. float16, bfloat16: rounded. int8, uint8: 256 steps between the ranges that were"
        " calibrated when the artifact was prepared. binary, ubinary: the signs, eight in a byte. As `quantize_embeddings` of"
        " sentence-transformers has them."
    ),
]
QueryField: TypeAlias = Annotated[str | None, Meta(description="Score `documents` by this query.")]
QueriesField: TypeAlias = Annotated[list[str] | None, Meta(description="Score `documents` by each of these queries.")]
DocumentsField: TypeAlias = Annotated[list[str] | None, Meta(description="The documents to score.")]
TopKField: TypeAlias = Annotated[
    Annotated[int, Meta(ge=1)] | None,
    Meta(description="Documents to return for each query, the best first; null returns all."),
]


def side_of(input_type: InputType | None, is_query: bool | None, path: str = "data.") -> InputType | None:
    """Return the side of retrieval that a request names by one field, by both, or by none.

    Raises:
        InvalidRequest: The two fields contradict each other.
    """
    if is_query is None:
        return input_type
    side: InputType = "query" if is_query else "document"
    if input_type not in (None, side):
        raise InvalidRequest(f"it contradicts input_type, which is {input_type}", param=f"{path}is_query")
    return side
