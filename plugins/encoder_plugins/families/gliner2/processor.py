"""Requests for structured extraction: texts and schemas to prompts, and what the model found to answers.

The engine gets token ids and the positions of words, tasks and labels; it answers with counts, candidates and logits. Everything that
needs words, offsets or names happens here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from typing import ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner.probabilities import probabilities
from encoder_plugins.families.gliner.request import Usage
from encoder_plugins.families.gliner2 import chunks, config, decode, overlaps, payload, request
from encoder_plugins.families.gliner2 import schema as schemas
from encoder_plugins.families.gliner2 import words as splitter
from encoder_plugins.families.gliner2.config import Gliner2Config
from encoder_plugins.families.gliner2.decode import Candidates, Found, Part
from encoder_plugins.families.gliner2.overlaps import Policy
from encoder_plugins.families.gliner2.payload import Item, SpanItem
from encoder_plugins.families.gliner2.prompt import PromptBuilder, SchemaPrompt
from encoder_plugins.families.gliner2.request import (
    Answer,
    Body,
    Gliner2Limits,
    Request,
    Result,
    SingleAnswer,
    SingleBody,
)
from encoder_plugins.families.gliner2.tasks import ENTITIES, MOST_STEPS, Field, Schema
from encoder_plugins.families.gliner2.validators import SECONDS, Checker, Matcher, Validator
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.inputs.text import texts_of
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.packing import MOST_TOKENS, grouped, pack
from encoder_plugins.serving.processor import Engine, Prompt, Response, ServingContext
from encoder_plugins.serving.processor import Schema as RouteSchema

# what decoding takes: of each text, of each field and step, and of each candidate
MICROSECONDS_PER_TEXT = 60
MICROSECONDS_PER_GROUP = 6
MICROSECONDS_PER_CANDIDATE = 3

_SLOW = round(SECONDS * 1e6)


@dataclass(frozen=True, slots=True)
class PreparedText:
    """How one text is read.

    Attributes:
        schema: What to extract.
        parts: The text, or its chunks; one prompt each.
        words_sent: The number of words of the text.
        words_kept: The number of words that were not cut off; None unless the client chose to have them cut off.
    """

    schema: Schema
    parts: Sequence[Part]
    words_sent: int
    words_kept: int | None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A checked request: what the engine gets, and what the answer needs.

    Attributes:
        data: The request.
        policy: Which of overlapping values are kept.
        lora: The adapter; None for none.
        texts: How each text is read.
        items: What the pooler gets of each part of each text, by prompt.
        prompts: Each holds as many parts as the engine takes in one, in order.
    """

    data: Request
    policy: Policy
    lora: str | None
    texts: Sequence[PreparedText]
    items: Sequence[Sequence[Item]]
    prompts: Sequence[Prompt]

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens that the engine reads for this request."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def validators(self) -> list[Validator]:
        """The expressions of all schemas, each once."""
        schemas = {id(text.schema): text.schema for text in self.texts}.values()
        return [one for schema in schemas for task in schema.spans for field in task.fields for one in field.validators]


class Gliner2Processor:
    """Serves the answers of one GLiNER2 checkpoint."""

    schemas: ClassVar[Mapping[str, RouteSchema]] = {"pooling": RouteSchema(Envelope[Request], SingleBody, Body)}

    def __init__(self, context: ServingContext) -> None:
        self.limits = limits.typed(Gliner2Limits, context.limits)
        self._context = context
        values = json.loads((context.model / "config.json").read_text(encoding="utf-8"))
        self._config = Gliner2Config.from_dict(values[config.KEY])
        # not through transformers: its classes rebuild some tokenizers when they load them
        self._matcher = Matcher()
        self._matching = asyncio.Lock()
        self._builder = PromptBuilder(Tokenizer.from_file(str(context.model / "tokenizer.json")))

    def parse(self, route: Route, body: bytes) -> Parsed:
        """Check the request and make its prompts."""
        envelope = bodies.decode(body, Envelope[Request])
        lora = bodies.adapter_of(envelope.model, envelope.lora, self._context.names, self._context.adapters)
        return self.prepare(envelope.data, lora)

    def prepare(self, data: Request, lora: str | None = None) -> Parsed:
        """Check what the envelope holds, and make its prompts."""
        # the library reads any string: an empty one as a full stop
        texts = texts_of(data.text, data.texts, self.limits, anything=True)
        policy = overlaps.policy_of(data.overlap_policy, default="greedy")
        if policy is None:
            raise InvalidRequest(f"it must be null or {' or '.join(overlaps.POLICIES)}", param="data.overlap_policy")
        reader = _Reader(data, self._builder, self._context.max_model_len, self._config.max_width, self.limits)
        prepared = [
            reader.read(position, text, schema)
            for position, (text, schema) in enumerate(
                zip(texts, schemas.schemas_of(data, len(texts), self.limits), strict=True)
            )
        ]
        packs = pack(list(map(len, reader.tokens)), min(MOST_TOKENS, self._context.max_model_len))
        items, tokens = grouped(reader.items, packs), grouped(reader.tokens, packs)
        prompts = [_prompt(*of_prompt) for of_prompt in zip(items, tokens, strict=True)]
        return Parsed(data, policy, lora, prepared, items, prompts)

    async def run(self, request: Parsed, engine: Engine) -> Response:
        """Answer with what was found in each text, in the order of the texts."""
        checker = Checker(self._matcher)
        if not (validators := request.validators):
            tables = await engine.encode(request.prompts, lora=request.lora)
            return await engine.compute(self._response, request, tables, checker, size=_decoding(request, tables))
        # of requests with expressions one at a time: they must not fill the threads that others need
        async with self._matching:
            await engine.compute(checker.compile, validators, size=_SLOW)
        tables = await engine.encode(request.prompts, lora=request.lora)
        async with self._matching:
            return await engine.compute(self._response, request, tables, checker, size=_SLOW)

    def _response(self, parsed: Parsed, tables: Sequence[torch.Tensor], checker: Checker) -> Response:
        """Return the response to the tables of all prompts.

        Raises:
            InvalidRequest: There are too many values for one answer, or its patterns take too long.
        """
        results: list[Result] = []
        count = 0
        found = (
            found_of(table, item)
            for answer, items in zip(tables, parsed.items, strict=True)
            for table, item in zip(payload.split(answer, items), items, strict=True)
        )
        for text in parsed.texts:
            result = result_of(text, list(islice(found, len(text.parts))), parsed, checker)
            if (count := count + decode.values(result)) > self.limits.values:
                raise InvalidRequest(
                    f"there are more than {self.limits.values} values above the threshold, the limit",
                    param="data.threshold",
                )
            results.append(result)
        usage = Usage(parsed.prompt_tokens, sum(text.words_sent for text in parsed.texts))
        body: SingleBody | Body = Body(Answer(results, usage))
        if parsed.data.text is not None:
            (one,) = results
            body = SingleBody(SingleAnswer(**msgspec.structs.asdict(one), usage=usage))
        return Response(body=msgspec.json.encode(body), prompt_tokens=usage.prompt_tokens)


def _decoding(request: Parsed, tables: Sequence[torch.Tensor]) -> int:
    """Return how many microseconds it takes to decode the tables of a request."""
    return (
        sum(len(text.parts) for text in request.texts) * MICROSECONDS_PER_TEXT
        + sum(text.schema.queries * len(text.parts) for text in request.texts) * MICROSECONDS_PER_GROUP
        + sum(table.numel() for table in tables) // payload.COLUMNS * MICROSECONDS_PER_CANDIDATE
    )


def _prompt(items: Sequence[Item], tokens: Sequence[list[int]]) -> Prompt:
    parameters = payload.encode_texts(items, list(map(len, tokens)))
    return Prompt(token_ids=[*chain.from_iterable(tokens)], parameters=parameters)


class _Reader:
    """Reads the texts of one request, in order.

    Attributes:
        items: What the pooler gets of each part of each text.
        tokens: The token ids of each part.
    """

    def __init__(
        self, data: Request, builder: PromptBuilder, most_tokens: int, max_width: int, limits: Gliner2Limits
    ) -> None:
        self.items: list[Item] = []
        self.tokens: list[list[int]] = []
        self._data = data
        self._builder = builder
        self._most_tokens = most_tokens
        self._max_width = max_width
        self._limits = limits
        self._known: tuple[Schema, SchemaPrompt] | None = None  # of the text before
        self._total = 0
        self._pairs = 0

    def read(self, position: int, text: str, schema: Schema) -> PreparedText:
        """Make the parts of a text."""
        path = request.text_path(self._data, position)
        if self._known is None or self._known[0] is not schema:
            self._known = (schema, self._builder.schema(schema))
        prompt = self._known[1]
        if len(prompt.tokens) >= self._most_tokens:
            raise InvalidRequest(
                f"the schema is {len(prompt.tokens)} tokens; the model takes {self._most_tokens} with the text",
                param=schema.path,
            )
        if self._data.overflow == "chunk":
            whole = splitter.split(text)
            parts = []
            for start, end in chunks.plan(text, whole):
                piece = text[start:end]
                words = splitter.split(splitter.ended(piece)).first(request.CHUNK_WORDS)
                parts.append(self._add(Part(piece, start, words), schema, prompt, path))
            return PreparedText(schema, parts, len(whole), None)
        words = splitter.split(splitter.ended(text))
        part = self._add(Part(text, 0, words), schema, prompt, path)
        # the full stop that the library appends is not one of them
        sent, kept = (sum(start < len(text) for start in found.starts) for found in (words, part.words))
        return PreparedText(schema, [part], sent, kept if self._data.overflow == "truncate" else None)

    def _add(self, part: Part, schema: Schema, prompt: SchemaPrompt, path: str) -> Part:
        """Make the tokens of a part, and return the part with the words that are in it."""
        pieces = self._builder.pieces(part.words.tokens)
        tokens, positions = self._builder.build(prompt, pieces)
        if len(tokens) > self._most_tokens:
            kept = sum(end <= self._most_tokens for end in accumulate(map(len, pieces), initial=len(prompt.tokens))) - 1
            if self._data.overflow != "truncate" or kept < 1:
                instead = {
                    "refuse": '"overflow" can be chunk or truncate',
                    "chunk": '"overflow" can be truncate',
                    "truncate": "not even the first word fits",
                }
                raise InvalidRequest(
                    f"schema and text are {len(tokens)} tokens, {len(prompt.tokens)} of them the schema's; the model takes"
                    f" {self._most_tokens}: {instead[self._data.overflow]}",
                    param=path,
                )
            part = replace(part, words=part.words.first(kept))
            tokens, positions = self._builder.build(prompt, pieces[:kept])
        self._check(len(tokens), len(positions), schema, path)
        item = item_of(schema, prompt, positions, self._data.threshold)
        self.items.append(item)
        self.tokens.append(tokens)
        return part

    def _check(self, tokens: int, words: int, schema: Schema, path: str) -> None:
        """Count what the request has become, and refuse more than the limits."""
        self._total += tokens
        limits = self._limits
        if len(self.tokens) == limits.prompts:
            raise InvalidRequest(
                f"the texts up to this one are read in more than {limits.prompts} parts, the limit", param=path
            )
        if self._total > limits.prompt_tokens:
            raise InvalidRequest(
                f"the texts up to this one are more than {limits.prompt_tokens} tokens with their schemas, the limit",
                param=path,
            )
        queries = sum(
            1 if task.kind == ENTITIES else MOST_STEPS
            for task in schema.spans
            for field in task.fields
            if _threshold(field, self._data.threshold) < request.LOW_THRESHOLD
        )
        self._pairs += words * self._max_width * queries
        if self._pairs > limits.candidates:
            raise InvalidRequest(
                f"with thresholds below {request.LOW_THRESHOLD}, words times {self._max_width} times fields, those of structures"
                f" and relations {MOST_STEPS} times, may be {limits.candidates}; they are at least {self._pairs}",
                param="data.threshold" if self._data.threshold < request.LOW_THRESHOLD else schema.path,
            )


def _threshold(field: Field, threshold: float) -> float:
    """Return the threshold of a field in a request with ``threshold``."""
    return threshold if field.threshold is None else field.threshold


def item_of(schema: Schema, prompt: SchemaPrompt, words: NDArray[np.int32], threshold: float) -> Item:
    """Return what the pooler gets of a text whose words are at ``words``."""
    spans = []
    for task, (part, *fields) in zip(schema.spans, prompt.spans, strict=True):
        entities = task.kind == ENTITIES
        limits = [_threshold(field, threshold) for field in task.fields]
        attributes = len(task.fields) - schema.types if entities else 0
        spans.append(SpanItem(part, np.array(fields, np.int32), np.array(limits, np.float32), entities, attributes))
    return Item(words, tuple(spans), tuple(np.array(positions, np.int32) for positions in prompt.classes))


def found_of(table: torch.Tensor, item: Item) -> Found:
    """Return what the pooler found in a part."""
    output = payload.decode_output(table, item)
    scores = probabilities(output.logits).numpy()
    candidates = Candidates(output.places, scores, output.attributes.numpy())
    return Found(output.counts.tolist(), candidates, output.classes)


def result_of(text: PreparedText, found: Sequence[Found], parsed: Parsed, checker: Checker) -> Result:
    """Return the answer for one text, whose parts have ``found``; ``checker`` is that of the request."""
    results = [
        decode.result(text.schema, part, each, parsed.data.threshold, parsed.policy, checker)
        for part, each in zip(text.parts, found, strict=True)
    ]
    if parsed.data.overflow == "chunk":
        merged = chunks.merge(text.schema, results, parsed.policy)
        return msgspec.structs.replace(merged, chunks=len(results))
    (result,) = results
    if (kept := text.words_kept) is None:
        return result
    return msgspec.structs.replace(result, truncated=kept < text.words_sent, words_kept=kept)
