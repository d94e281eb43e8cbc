"""The methods of ``gliner2.GLiNER2`` as requests. Pure: each function plans a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from encoder_client.context import Context, refuse, require
from encoder_client.errors import ArgumentError
from encoder_client.extraction.results import Extracted, Shape, extracted
from encoder_client.extraction.schema import schema_dict
from encoder_client.server import json_of as json_of_answer
from encoder_client.work import Answer, Batch, Item, Work, first_of, json_of, texts_of

# a request with fewer texts may stay below the limits that stand behind these
_DIVISIBLE = ("data.texts", "data.threshold")
_ENGINE = "the server decides how texts are computed; leave it out"
_RAW = "servers answer in the library's format; leave it out"
_CUT = "servers read a text whole, or in chunks with the methods that end in _long; leave it out"
_CHUNK_WORDS, _CHUNK_OVERLAP = 384, 64


def batch_extract(
    context: Context,
    texts: Sequence[str],
    schemas: Any,
    batch_size: int = 8,
    threshold: float = 0.5,
    num_workers: Literal[0] = 0,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
    hidden_states: None = None,
) -> Work[list[Extracted]]:
    """Return what each text has of what its schema names, as ``gliner2.GLiNER2.batch_extract`` does.

    Args:
        context: The server.
        texts: The texts; none gives an empty list.
        schemas: What to extract from all texts, or a list of that for each: a ``Schema`` of this package or of gliner2, or a dictionary
            in the form of ``Schema.to_dict``.
        batch_size: Texts of one request; fewer where the server's limits require it.
        threshold: From 0 to 1; the probability of a value is at least this, where the schema names no other.
        num_workers: Only 0: the server decides how texts are computed.
        format_results: Only True.
        include_confidence: Whether values have ``confidence``, their probability.
        include_spans: Whether values have ``start`` and ``end`` in characters (code points, ``end`` behind the last one).
        max_len: Only None: a text is read whole, or refused.
        overlap_policy: Which of overlapping values of one field are kept: None, ``flat``, ``nested``, ``longest`` or ``allow``.
        hidden_states: Only None.

    Returns:
        For each text a dictionary: ``entities`` by type, a label or labels by task, records by structure, pairs by relation in
        ``relation_extraction``.

    Raises:
        ArgumentError: An argument cannot be honoured; ``param`` is its name.
        InvalidRequestError: The server refused a request; ``param`` is the field, with the position in ``texts``.
        EncoderClientError: No answer; see ``encoder_client.errors``.
    """
    refuse(_ENGINE, num_workers=num_workers or None, hidden_states=hidden_states)
    refuse(_RAW, format_results=None if format_results else "False")
    refuse(_CUT, max_len=max_len)
    shape = Shape(confidence=include_confidence, spans=include_spans, long=False)
    return _planned(context, texts, schemas, batch_size, threshold, overlap_policy, shape)


def extract(
    context: Context,
    text: str,
    schema: Any,
    threshold: float = 0.5,
    format_results: Literal[True] = True,
    include_confidence: bool = False,
    include_spans: bool = False,
    max_len: None = None,
    overlap_policy: str | None = None,
) -> Work[Extracted]:
    """Return what one text has of what ``schema`` names, as ``gliner2.GLiNER2.extract`` does; see ``batch_extract``."""
    options = (format_results, include_confidence, include_spans, max_len, overlap_policy)
    return first_of(batch_extract(context, _one(text), schema, 1, threshold, 0, *options))


def batch_extract_long(
    context: Context,
    texts: Sequence[str],
    schemas: Any,
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
    """Return what texts of any length have of what their schemas name, as ``gliner2.GLiNER2.batch_extract_long`` does.

    Arguments, results and errors are those of ``batch_extract``. A text is read in chunks of 384 words, of which 64 overlap: ``chunk_size``
    and ``chunk_overlap`` can have no other value.
    """
    refuse(_ENGINE, num_workers=num_workers or None)
    refuse(_RAW, format_results=None if format_results else "False")
    for name, given, known in (
        ("chunk_size", chunk_size, _CHUNK_WORDS),
        ("chunk_overlap", chunk_overlap, _CHUNK_OVERLAP),
    ):
        if given != known:
            raise ArgumentError(
                f"servers read chunks of {_CHUNK_WORDS} words, of which {_CHUNK_OVERLAP} overlap", param=name
            )
    shape = Shape(confidence=include_confidence, spans=include_spans, long=True)
    return _planned(context, texts, schemas, batch_size, threshold, overlap_policy, shape)


def extract_long(
    context: Context,
    text: str,
    schema: Any,
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
    """Return what one text of any length has of what ``schema`` names; see ``batch_extract_long``."""
    options = (format_results, include_confidence, include_spans, chunk_size, chunk_overlap, overlap_policy)
    return first_of(batch_extract_long(context, _one(text), schema, batch_size, threshold, num_workers, *options))


def _planned(
    context: Context,
    texts: Sequence[str],
    schemas: Any,
    batch_size: int,
    threshold: float,
    overlap_policy: str | None,
    shape: Shape,
) -> Work[list[Extracted]]:
    context.server.require_kind("schema", kind="the methods of GLiNER2")
    require(threshold=threshold)
    if isinstance(texts, str):
        raise ArgumentError("it is one text; send a list of texts", param="texts")
    found = texts_of(texts, param="texts")
    common: dict[str, Any] = {
        "threshold": threshold,
        "overlap_policy": overlap_policy,
        "overflow": "chunk" if shape.long else "refuse",
    }
    if isinstance(schemas, list | tuple):
        if len(schemas) != len(found):
            raise ArgumentError(f"{len(schemas)} for {len(found)} texts; it has to have one for each", param="schemas")
        given: Sequence[Mapping[str, Any]] = [
            schema_dict(schema, param=f"schemas[{place}]") for place, schema in enumerate(schemas)
        ]
        columns = {"texts": found, "schemas": given}
    else:
        shared = schema_dict(schemas, param="schemas")
        given = [shared] * len(found)
        columns = {"texts": found}
        common["schema"] = shared

    def items() -> Iterator[Item]:
        for place, text in enumerate(found):
            values = {name: json_of(column[place], param=f"{name}[{place}]") for name, column in columns.items()}
            yield Item(values=values, characters=len(text), place=place)

    def decode(answer: Answer, batch: Batch) -> list[Extracted]:
        results = json_of_answer(answer.content)["data"]["results"]
        return [extracted(result, given[item.place], shape) for item, result in zip(batch.items, results, strict=True)]

    batches = context.batches(items(), common, batch_size=batch_size, limits=("texts", "prompts"), divisible=_DIVISIBLE)
    return Work(
        batches=iter(batches),
        total=len(found),
        decode=decode,
        combine=lambda parts: [each for part in parts for each in part],
    )


def _one(text: Any) -> list[str]:
    if not isinstance(text, str):
        raise ArgumentError(f"it is {type(text).__name__}, not a text", param="text")
    return [text]
