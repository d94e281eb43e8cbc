"""The methods of ``gliner2.GLiNER2`` for one task: a schema is made, and extracted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from encoder_client.context import Context
from encoder_client.extraction.calls import batch_extract, batch_extract_long, extract, extract_long
from encoder_client.extraction.results import Extracted
from encoder_client.extraction.schema import (
    EntityTypes,
    RelationTypes,
    Schema,
    classification_schema,
    json_schema,
)
from encoder_client.work import Work


def extract_entities(
    context: Context,
    text: str,
    entity_types: EntityTypes,
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return the entities of one text, as ``gliner2.GLiNER2.extract_entities`` does; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return extract(context, text, Schema().entities(entity_types), threshold, *options)


def extract_entities_long(
    context: Context,
    text: str,
    entity_types: EntityTypes,
    threshold: float = 0.5,
    chunk_size: Literal[384] = 384,
    chunk_overlap: Literal[64] = 64,
    batch_size: int = 8,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return the entities of one text of any length; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, overlap_policy)
    return extract_long(
        context,
        text,
        Schema().entities(entity_types),
        threshold,
        chunk_size,
        chunk_overlap,
        batch_size,
        num_workers,
        *options,
    )


def batch_extract_entities(
    context: Context,
    texts: Sequence[str],
    entity_types: EntityTypes,
    batch_size: int = 8,
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[list[Extracted]]:
    """Return the entities of each text; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return batch_extract(context, texts, Schema().entities(entity_types), batch_size, threshold, 0, *options)


def batch_extract_entities_long(
    context: Context,
    texts: Sequence[str],
    entity_types: EntityTypes,
    batch_size: int = 8,
    threshold: float = 0.5,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    chunk_size: Literal[384] = 384,
    chunk_overlap: Literal[64] = 64,
    overlap_policy: str | None = None,
) -> Work[list[Extracted]]:
    """Return the entities of texts of any length; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, chunk_size, chunk_overlap, overlap_policy)
    return batch_extract_long(
        context, texts, Schema().entities(entity_types), batch_size, threshold, num_workers, *options
    )


def classify_text(
    context: Context,
    text: str,
    tasks: Mapping[str, Any],
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return the classes of one text, as ``gliner2.GLiNER2.classify_text`` does; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return extract(context, text, classification_schema(tasks), threshold, *options)


def classify_text_long(
    context: Context,
    text: str,
    tasks: Mapping[str, Any],
    threshold: float = 0.5,
    chunk_size: Literal[384] = 384,
    chunk_overlap: Literal[64] = 64,
    batch_size: int = 8,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return the classes of one text of any length; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, overlap_policy)
    return extract_long(
        context,
        text,
        classification_schema(tasks),
        threshold,
        chunk_size,
        chunk_overlap,
        batch_size,
        num_workers,
        *options,
    )


def batch_classify_text(
    context: Context,
    texts: Sequence[str],
    tasks: Mapping[str, Any],
    batch_size: int = 8,
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[list[Extracted]]:
    """Return the classes of each text; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return batch_extract(context, texts, classification_schema(tasks), batch_size, threshold, 0, *options)


def batch_classify_text_long(
    context: Context,
    texts: Sequence[str],
    tasks: Mapping[str, Any],
    batch_size: int = 8,
    threshold: float = 0.5,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    chunk_size: Literal[384] = 384,
    chunk_overlap: Literal[64] = 64,
    overlap_policy: str | None = None,
) -> Work[list[Extracted]]:
    """Return the classes of texts of any length; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, chunk_size, chunk_overlap, overlap_policy)
    return batch_extract_long(
        context, texts, classification_schema(tasks), batch_size, threshold, num_workers, *options
    )


def extract_json(
    context: Context,
    text: str,
    structures: Mapping[str, Sequence[str | Mapping[str, Any]]],
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return the records of one text, as ``gliner2.GLiNER2.extract_json`` does; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return extract(context, text, json_schema(structures), threshold, *options)


def extract_json_long(
    context: Context,
    text: str,
    structures: Mapping[str, Sequence[str | Mapping[str, Any]]],
    threshold: float = 0.5,
    chunk_size: Literal[384] = 384,
    chunk_overlap: Literal[64] = 64,
    batch_size: int = 8,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return the records of one text of any length; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, overlap_policy)
    return extract_long(
        context, text, json_schema(structures), threshold, chunk_size, chunk_overlap, batch_size, num_workers, *options
    )


def batch_extract_json(
    context: Context,
    texts: Sequence[str],
    structures: Mapping[str, Sequence[str | Mapping[str, Any]]],
    batch_size: int = 8,
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[list[Extracted]]:
    """Return the records of each text; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return batch_extract(context, texts, json_schema(structures), batch_size, threshold, 0, *options)


def batch_extract_json_long(
    context: Context,
    texts: Sequence[str],
    structures: Mapping[str, Sequence[str | Mapping[str, Any]]],
    batch_size: int = 8,
    threshold: float = 0.5,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    chunk_size: Literal[384] = 384,
    chunk_overlap: Literal[64] = 64,
    overlap_policy: str | None = None,
) -> Work[list[Extracted]]:
    """Return the records of texts of any length; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, chunk_size, chunk_overlap, overlap_policy)
    return batch_extract_long(context, texts, json_schema(structures), batch_size, threshold, num_workers, *options)


def extract_relations(
    context: Context,
    text: str,
    relation_types: RelationTypes,
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return the relations of one text, as ``gliner2.GLiNER2.extract_relations`` does; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return extract(context, text, Schema().relations(relation_types), threshold, *options)


def extract_relations_long(
    context: Context,
    text: str,
    relation_types: RelationTypes,
    threshold: float = 0.5,
    chunk_size: Literal[384] = 384,
    chunk_overlap: Literal[64] = 64,
    batch_size: int = 8,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return the relations of one text of any length; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, overlap_policy)
    return extract_long(
        context,
        text,
        Schema().relations(relation_types),
        threshold,
        chunk_size,
        chunk_overlap,
        batch_size,
        num_workers,
        *options,
    )


def batch_extract_relations(
    context: Context,
    texts: Sequence[str],
    relation_types: RelationTypes,
    batch_size: int = 8,
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[list[Extracted]]:
    """Return the relations of each text; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return batch_extract(context, texts, Schema().relations(relation_types), batch_size, threshold, 0, *options)


def batch_extract_relations_long(
    context: Context,
    texts: Sequence[str],
    relation_types: RelationTypes,
    batch_size: int = 8,
    threshold: float = 0.5,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    chunk_size: Literal[384] = 384,
    chunk_overlap: Literal[64] = 64,
    overlap_policy: str | None = None,
) -> Work[list[Extracted]]:
    """Return the relations of texts of any length; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, chunk_size, chunk_overlap, overlap_policy)
    return batch_extract_long(
        context, texts, Schema().relations(relation_types), batch_size, threshold, num_workers, *options
    )
