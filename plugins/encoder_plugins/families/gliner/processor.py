"""Requests for entities: texts and labels to prompts, and candidates to entities.

The engine gets token ids and the positions of words and labels; it answers with the spans above the threshold. Everything that needs
words, offsets or the names of labels happens here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from encoder_plugins.errors import InvalidRequest, NotServable
from encoder_plugins.families.gliner import answers, chunks, config, payload, request, stanza_words, word_answers
from encoder_plugins.families.gliner import words as splitter
from encoder_plugins.families.gliner.answers import Candidates, PreparedText, Table
from encoder_plugins.families.gliner.chunks import Chunk
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.decode_words import TooManySpans
from encoder_plugins.families.gliner.label_runs import BiPromptBuilder
from encoder_plugins.families.gliner.payload import Item
from encoder_plugins.families.gliner.prompt import BuiltPrompt, LabelProblem, Labels, PromptBuilder, Tokens
from encoder_plugins.families.gliner.request import (
    Answer,
    Body,
    Entity,
    EntityRequest,
    GlinerLimits,
    Request,
    Result,
    SingleAnswer,
    SingleBody,
    Usage,
)
from encoder_plugins.families.gliner.stanza_words import StanzaSplitter
from encoder_plugins.families.gliner.words import Split
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.inputs.text import texts_of
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.packing import grouped, pack
from encoder_plugins.serving.processor import Engine, Prompt, Response, Schema, ServingContext

# transformers writes "no limit" as a number beyond this one, and other libraries as one beyond what any text has
UNLIMITED = 10**9

# what decoding takes: of each text, and of each candidate; and the words that are located in a microsecond
MICROSECONDS_PER_TEXT = 60
MICROSECONDS_PER_CANDIDATE = 5
WORDS_PER_MICROSECOND = 10
# what stanza takes of a short text: more than the event loop can spare
MICROSECONDS_OF_STANZA = 10_000


@dataclass(frozen=True, slots=True)
class Part:
    """One chunk of a text, as the engine gets it.

    Attributes:
        tokens: Its token ids, labels and words.
        item: The positions of its words and labels.
    """

    tokens: Sequence[int]
    item: Item


@dataclass(frozen=True, slots=True)
class Parsed:
    """A checked request: what the engine gets, and what the answer needs.

    Attributes:
        data: The request.
        lora: The adapter; None for none.
        texts: How each text is read: once for each group of its labels, one after the other.
        readings: How often each text is read.
        parts: The chunks of all texts, in order.
        packs: The number of parts of each prompt.
        prompts: Each holds as many parts as the engine takes in one.
    """

    data: EntityRequest
    lora: str | None
    texts: Sequence[PreparedText]
    readings: Sequence[int]
    parts: Sequence[Part]
    packs: Sequence[int]
    prompts: Sequence[Prompt]

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens that the engine reads for this request."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class Unsplit:
    """A request whose texts are yet to be split into words, which takes too long for the event loop."""

    data: EntityRequest
    lora: str | None


class GlinerProcessor:
    """Serves the entities of one GLiNER checkpoint."""

    schemas: ClassVar[Mapping[str, Schema]] = {"pooling": Schema(Envelope[Request], SingleBody, Body)}
    envelope: ClassVar[Any] = Envelope[Request]

    def __init__(self, context: ServingContext) -> None:
        self.limits = limits.typed(GlinerLimits, context.limits)
        self._context = context
        self._config = read_config(context.model)
        self._by_word = self._config.head == "token"
        self._counted = "words times span widths times labels"
        if self._by_word:
            self._counted = "spans times labels" if self._config.represent_spans else "words times labels"
        scored_words = self._by_word and not self._config.represent_spans
        first, last = (
            (payload.TOKEN_LOGITS, payload.TOKEN_COLUMNS) if scored_words else (payload.LOGIT, payload.COLUMNS)
        )
        self._logits = slice(first, last)
        self._stanza = _stanza_splitter(context.model, self._config) if self._config.languages else None
        tokenizer, tokenizer_limit = read_tokenizer(context.model)
        self._builder = self.builder(context.model, tokenizer, tokenizer_limit)
        self._engine_limit = context.max_model_len
        self._most_tokens = min(context.max_model_len, tokenizer_limit or context.max_model_len)

    def builder(self, folder: Path, tokenizer: Tokenizer, limit: int | None) -> PromptBuilder | BiPromptBuilder:
        """Return what makes the prompts of the model in ``folder``; its tokenizer cuts them off at ``limit``."""
        del folder
        return PromptBuilder(tokenizer, self._config, tokenizer_limit=limit)

    def parse(self, route: Route, body: bytes) -> Parsed | Unsplit:
        """Check the request and make its prompts; those of texts that stanza splits are made by ``run``."""
        envelope = bodies.decode(body, self.envelope)
        lora = bodies.adapter_of(envelope.model, envelope.lora, self._context.names, self._context.adapters)
        request.check_language(envelope.data, self._config.languages)
        if self._stanza is not None:
            return Unsplit(envelope.data, lora)
        return self.prepare(envelope.data, lora)

    def label_lists(self, data: EntityRequest, texts: int) -> list[tuple[str, ...]]:
        """Return each text's labels, all different from each other."""
        return request.labels_of(data, texts, self.limits)

    def label_path(self, data: EntityRequest, text: int, label: str) -> str:
        """Return the field of the first ``label`` among the labels of a text."""
        return request.label_path(data, text, label)

    def labels_path(self, data: EntityRequest, text: int) -> str:
        """Return the field of the labels of a text."""
        return request.labels_path(data, text)

    def groups(self, data: EntityRequest, names: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
        """Return the labels of a text that are read with it at once: all of them, as the library does."""
        del data
        return [names]

    def named(self, data: EntityRequest, position: int, entities: list[Entity]) -> list[Entity]:
        """Return the entities of a text with what the request has for their labels."""
        del data, position
        return entities

    def prepare(self, data: EntityRequest, lora: str | None = None) -> Parsed:
        """Check what the envelope holds, and make its prompts."""
        if self._by_word and request.wants_class_probs(data):
            raise InvalidRequest(
                "this checkpoint scores words, and has no probabilities of a span's other labels",
                param="data.return_class_probs",
            )
        # the library finds entities in any string, and nothing in an empty one
        texts = texts_of(data.text, data.texts, self.limits, anything=True)
        label_lists = self.label_lists(data, len(texts))
        span_lists = request.spans_of(data, len(texts))
        prepared_texts: list[PreparedText] = []
        readings: list[int] = []
        parts: list[Part] = []
        known: dict[tuple[str, ...], Labels] = {}
        pairs = 0
        for position, (text, names, spans) in enumerate(zip(texts, label_lists, span_lists, strict=True)):
            split = self._split(data, position, text)
            words = split.words
            allowed = None if spans is None else aligned(split.places(text), spans)
            groups = self.groups(data, names)
            readings.append(len(groups))
            for group in groups:
                if (labels := known.get(group)) is None:
                    labels = known[group] = self._labels(data, position, group)
                if not words or not group:
                    kept = len(words) if data.overflow == "truncate" else None
                    prepared_texts.append(PreparedText(text, words, group, allowed, (), kept, len(words), split))
                    continue
                prepared, built = self._read(data, position, text, split, group, allowed, labels)
                prepared_texts.append(prepared)
                pairs += sum(self._scored(len(prompt.words)) for prompt in built) * len(group)
                request.check_candidates(data, pairs, self.limits, self._counted)
                parts += (_part(data, prompt, labels) for prompt in built)
                if len(parts) > self.limits.prompts:
                    raise InvalidRequest(
                        f"the texts up to this one are read in more than {self.limits.prompts} parts, the limit",
                        param=request.text_path(data, position),
                    )
            prepared_texts[-len(groups) :] = word_answers.kept_by_all(prepared_texts[-len(groups) :])
        # parts of one prompt share the number of classes that come along
        packs = pack([len(part.tokens) for part in parts], self._engine_limit, [part.item.classes for part in parts])
        prompts = [_prompt(some) for some in grouped(parts, packs)]
        return Parsed(data, lora, prepared_texts, readings, parts, packs, prompts)

    def _scored(self, words: int) -> int:
        """Return how many words, or spans, of a text with ``words`` words may be scored with each label."""
        if self._config.represent_spans:
            return words * (words + 1) // 2
        return words if self._by_word else words * self._config.max_width

    def _split(self, data: EntityRequest, position: int, text: str) -> Split:
        """Return the words of a text."""
        if self._stanza is None:
            return Split(splitter.split(text))
        try:
            return self._stanza.split(text, data.language)
        except ValueError as error:
            raise InvalidRequest(str(error), param=request.text_path(data, position)) from None

    async def run(self, request: Parsed | Unsplit, engine: Engine) -> Response:
        """Answer with the entities of each text, in the order of the texts."""
        if isinstance(request, Unsplit):
            request = await engine.compute(self.prepare, request.data, request.lora, size=MICROSECONDS_OF_STANZA)
        tables = await engine.encode(request.prompts, lora=request.lora)
        candidates = sum(len(table) for table in tables)
        size = len(request.texts) * MICROSECONDS_PER_TEXT + candidates * MICROSECONDS_PER_CANDIDATE
        size += sum(text.words_sent for text in request.texts) // WORDS_PER_MICROSECOND
        return await engine.compute(self._response, request, tables, size=size)

    def _response(self, parsed: Parsed, tables: Sequence[torch.Tensor]) -> Response:
        """Return the response to the tables of candidates of all prompts.

        Raises:
            InvalidRequest: There are too many entities for one answer.
        """
        data, results, count, sent, spans = parsed.data, list[Result](), 0, 0, 0
        each, texts = self._tables(parsed, tables), iter(parsed.texts)
        for position, number in enumerate(parsed.readings):
            read: list[tuple[PreparedText, Candidates, NDArray[np.int64]]] = []
            for text in islice(texts, number):
                found = self._candidates(text, list(islice(each, len(text.chunks))), data, spans)
                spans += len(found.score)
                read.append((text, found, self._chosen(text, found, data)))
            text, found, rows = read[0] if number == 1 else word_answers.merged(read, data)
            request.check_entities(count := count + rows.size, self.limits)
            entities = self.named(data, position, answers.entities(text, found, rows, data))
            results.append(answers.result_of(text, entities, data))
            sent += text.words_sent
        usage = Usage(parsed.prompt_tokens, sent)
        body: SingleBody | Body = Body(Answer(results, usage))
        if data.text is not None:
            (one,) = results
            body = SingleBody(SingleAnswer(*msgspec.structs.astuple(one), usage=usage))
        return Response(body=msgspec.json.encode(body), prompt_tokens=usage.prompt_tokens)

    def _tables(self, parsed: Parsed, pooled: Sequence[torch.Tensor]) -> Iterator[Table]:
        """Yield what was found in each part."""
        for table, parts in zip(pooled, grouped(parsed.parts, parsed.packs), strict=True):
            yield from answers.tables_of(table, [len(part.item.words) for part in parts], self._logits)

    def _candidates(self, text: PreparedText, tables: Sequence[Table], data: EntityRequest, before: int) -> Candidates:
        """Return the candidates of a text behind ``before`` ones of the same request."""
        if not self._by_word:
            return answers.candidates(text, tables)
        if self._config.represent_spans:
            self._check_count(tables, before)
            return word_answers.proposed(text, tables, data)
        try:
            return word_answers.candidates(text, tables, data, most=self.limits.candidates - before)
        except TooManySpans as error:
            raise InvalidRequest(
                f"the scores permit at least {before + error.count} spans; the limit is {self.limits.candidates}",
                param="data.threshold",
            ) from None

    def _check_count(self, tables: Sequence[Table], before: int) -> None:
        """Refuse more candidates than a request may have, those among them that a pooler did not keep."""
        own = sum(answers.candidate_count(table) for table in tables)
        limit, count = self.limits.candidates, before + own
        if own > sum(len(table.rows) for table in tables):
            # the pooler has a limit, too
            limit = min(limit, payload.MOST_CANDIDATES)
        if count > limit:
            raise InvalidRequest(
                f"the scores permit at least {count} spans; the limit is {limit}",
                param="data.threshold",
            )

    def _chosen(self, text: PreparedText, found: Candidates, data: EntityRequest) -> NDArray[np.int64]:
        """Return which candidates are the entities, in order."""
        choose = word_answers.chosen if self._by_word else answers.chosen
        return choose(text, found, data)

    def _labels(self, data: EntityRequest, position: int, names: tuple[str, ...]) -> Labels:
        try:
            labels = self._builder.labels(names)
        except LabelProblem as problem:
            path = self.label_path(data, position, names[problem.position])
            raise InvalidRequest(str(problem), param=path) from None
        if self._tokens_left(labels) < 1:
            raise InvalidRequest(
                f"{len(names)} labels are {len(labels.tokens)} tokens; the model takes {self._most_tokens} with the text",
                param=self.labels_path(data, position),
            )
        return labels

    def _tokens_left(self, labels: Labels) -> int:
        """Return the number of tokens that are left for the words."""
        return self._most_tokens - len(labels.tokens) - self._builder.behind

    def _read(
        self,
        data: EntityRequest,
        position: int,
        text: str,
        split: Split,
        names: tuple[str, ...],
        allowed: frozenset[tuple[int, int]] | None,
        labels: Labels,
    ) -> tuple[PreparedText, list[BuiltPrompt]]:
        """Return how a text with words is read, and its prompts."""
        path, words = request.text_path(data, position), split.words
        if data.overflow == "chunk":
            pieces = self._builder.word_tokens(words)
            parts = self._plan(text, split, pieces, self._tokens_left(labels), path)
            prompts = [self._builder.build(labels, pieces[part.begin : part.end]) for part in parts]
            return PreparedText(text, words, names, allowed, parts, None, len(words), split), prompts
        most = self._config.max_words
        if len(words) > most and data.overflow == "refuse":
            raise InvalidRequest(
                f'the text has {len(words)} words; the model takes {most}. "overflow" can be "chunk" or "truncate"',
                param=path,
            )
        read = words[:most]
        prompt = self._builder.build(labels, self._builder.word_tokens(read))
        if data.overflow == "refuse" and (prompt.cut or len(prompt.tokens) > self._engine_limit):
            raise InvalidRequest(
                f"labels and text are {len(prompt.tokens) + prompt.cut} tokens; the model takes {self._most_tokens}."
                ' "overflow" can be "chunk" or "truncate"',
                param=path,
            )
        if len(prompt.tokens) > self._engine_limit:
            # the library would read it all: to cut here would be another answer than its own
            raise InvalidRequest(
                f"labels and text are {len(prompt.tokens)} tokens; this server takes {self._engine_limit}."
                ' "overflow" can be "chunk"',
                param=path,
            )
        kept = prompt.words_kept if data.overflow == "truncate" else None
        whole = [Chunk(0, len(read))]
        return PreparedText(text, read, names, allowed, whole, kept, len(words), split), [prompt]

    @property
    def _overlap(self) -> int:
        """Return how many words two parts of a text share: those of the widest entity, but fewer than a part has."""
        width, most = self._config.max_width, self._config.max_words
        if width < most:
            return width
        # where words are scored, an entity has no widest one that has to be whole
        return most // 2 if self._by_word else most - 1

    def _plan(self, text: str, split: Split, pieces: Sequence[Tokens], most_tokens: int, path: str) -> Sequence[Chunk]:
        words, lengths = split.words, list(map(len, pieces))
        most = self._config.max_words
        if len(words) <= most and sum(lengths) <= most_tokens:
            return [Chunk(0, len(words))]
        borders = chunks.sentence_ends(words, chunks.line_starts(text, [start for start, _ in split.places(text)]))
        try:
            return chunks.plan(
                lengths,
                most_words=most,
                most_tokens=most_tokens,
                overlap=self._overlap,
                most_parts=self.limits.prompts,
                borders=borders,
            )
        except chunks.TooManyParts as error:
            raise InvalidRequest(
                f"beside these labels {self.limits.prompts} parts, the limit, hold {error.words} words; the text has"
                f" {len(words)}",
                param=path,
            ) from None
        except chunks.WordsTooLong as error:
            begin, end = error.chunk
            raise InvalidRequest(
                f"the words {begin} to {end - 1} are {error.tokens} tokens; beside the labels the model takes"
                f" {most_tokens}",
                param=path,
            ) from None


def _part(data: EntityRequest, built: BuiltPrompt, labels: Labels) -> Part:
    classes = min(request.CLASS_PROBABILITIES, len(labels.positions)) if request.wants_class_probs(data) else 0
    return Part(built.tokens, Item(built.words, labels.positions, data.threshold, classes, labels.runs))


def _prompt(parts: Sequence[Part]) -> Prompt:
    items, runs = _shared_runs([part.item for part in parts])
    if len(items) == 1:
        item = items[0]
        parameters = payload.encode(item.words, item.labels, item.threshold, item.classes)
    else:
        parameters = payload.encode_texts(items, [len(part.tokens) for part in parts])
    if runs:
        parameters |= payload.encode_runs(runs)
    return Prompt(token_ids=[*chain.from_iterable(part.tokens for part in parts)], parameters=parameters)


def _shared_runs(items: list[Item]) -> tuple[list[Item], tuple[bytes, ...]]:
    """Return the texts of a prompt, whose labels are numbers of the runs beside them, each there once."""
    runs = items[0].runs
    if all(item.runs is runs for item in items):
        return items, runs
    numbers: dict[bytes, int] = {}
    shared = [
        replace(item, labels=np.array([numbers.setdefault(run, len(numbers)) for run in item.runs], np.int32))
        for item in items
    ]
    return shared, payload.RunList(numbers)


def read_config(folder: Path) -> GlinerConfig:
    """Return GLiNER's part of an artifact's config.json."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return GlinerConfig.from_dict(values[config.KEY])


def _stanza_splitter(folder: Path, config: GlinerConfig) -> StanzaSplitter:
    """Return the splitter of an artifact that was prepared with stanza's tokenizers.

    Raises:
        NotServable: stanza is not installed.
    """
    try:
        markers = (config.class_token, config.separator_token)
        return StanzaSplitter(folder / stanza_words.FOLDER, config.languages, markers)
    except ModuleNotFoundError as error:
        raise NotServable(
            f"the artifact was prepared with wordsSplitter: stanza, and {error.name} is not installed: use an image of this"
            " plugin, or install encoder-operator[words]"
        ) from error


def read_tokenizer(folder: Path) -> tuple[Tokenizer, int | None]:
    """Return the library's tokenizer as prep saved it, and the number of tokens that it takes; None for all.

    Not through transformers: its classes rebuild some tokenizers when they load them.

    Raises:
        ValueError: The tokenizer cuts texts off on the left.
    """
    about = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if (side := about.get("truncation_side", "right")) != "right":
        raise ValueError(f"the tokenizer cuts texts off at the {side}; only the right is supported")
    limit = about.get("model_max_length", UNLIMITED)
    return Tokenizer.from_file(str(folder / "tokenizer.json")), None if limit >= UNLIMITED else int(limit)


def aligned(places: Sequence[tuple[int, int]], spans: Sequence[request.CharacterSpan]) -> frozenset[tuple[int, int]]:
    """Return the (first word, last word) of those spans that begin and end with words, which are at ``places``."""
    # of words at the same place, the library takes the last
    first = {start: position for position, (start, _) in enumerate(places)}
    last = {end: position for position, (_, end) in enumerate(places)}
    found = ((first.get(span.start, -1), last.get(span.end, -1)) for span in spans)
    return frozenset((begin, end) for begin, end in found if 0 <= begin <= end)
