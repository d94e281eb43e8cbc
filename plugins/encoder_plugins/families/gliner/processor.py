"""Requests for entities: texts and labels to prompts, and candidates to entities.

The engine gets token ids and the positions of words and labels; it answers with the spans above the threshold. Everything that needs
words, offsets or the names of labels happens here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import chunks, config, decode, payload, request
from encoder_plugins.families.gliner import words as splitter
from encoder_plugins.families.gliner.chunks import Chunk
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.payload import Item
from encoder_plugins.families.gliner.prompt import BuiltPrompt, LabelProblem, Labels, PromptBuilder, Tokens
from encoder_plugins.families.gliner.request import (
    Answer,
    Body,
    Entity,
    GlinerLimits,
    Request,
    Result,
    SingleAnswer,
    SingleBody,
    Usage,
)
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.inputs.text import texts_of
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Engine, Prompt, Response, Schema, ServingContext

# transformers writes "no limit" as a number beyond this one, and other libraries as one beyond what any text has
UNLIMITED = 10**9

# what decoding takes: of each text, and of each candidate
MICROSECONDS_PER_TEXT = 60
MICROSECONDS_PER_CANDIDATE = 5


@dataclass(frozen=True, slots=True)
class PreparedText:
    """How one text is read.

    Attributes:
        text: As it was sent.
        words: Those that the model gets.
        labels: Different from each other.
        allowed: The only (first word, last word) that can be entities; None for all.
        chunks: The parts of it, one prompt each; none where there is nothing to find.
        words_kept: The number of words that were not cut off; None unless the client chose to have them cut off.
        words_sent: The number of words of the text.
    """

    text: str
    words: Sequence[str]
    labels: tuple[str, ...]
    allowed: frozenset[tuple[int, int]] | None
    chunks: Sequence[Chunk]
    words_kept: int | None
    words_sent: int


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
        texts: How each text is read.
        parts: The chunks of all texts, in order.
        packs: The number of parts of each prompt.
        prompts: Each holds as many parts as the engine takes in one.
    """

    data: Request
    lora: str | None
    texts: Sequence[PreparedText]
    parts: Sequence[Part]
    packs: Sequence[int]
    prompts: Sequence[Prompt]

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens that the engine reads for this request."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)


class GlinerProcessor:
    """Serves the entities of one GLiNER checkpoint."""

    schemas: ClassVar[Mapping[str, Schema]] = {"pooling": Schema(Envelope[Request], SingleBody, Body)}

    def __init__(self, context: ServingContext) -> None:
        self.limits = limits.typed(GlinerLimits, context.limits)
        self._context = context
        self._config = read_config(context.model)
        tokenizer, tokenizer_limit = read_tokenizer(context.model)
        self._builder = PromptBuilder(tokenizer, self._config, tokenizer_limit=tokenizer_limit)
        self._engine_limit = context.max_model_len
        self._most_tokens = min(context.max_model_len, tokenizer_limit or context.max_model_len)

    def parse(self, route: Route, body: bytes) -> Parsed:
        """Check the request and make its prompts."""
        envelope = bodies.decode(body, Envelope[Request])
        bodies.check_model(envelope.model, self._context.names)
        bodies.check_adapter(envelope.lora, self._context.adapters)
        return self.prepare(envelope.data, envelope.lora)

    def prepare(self, data: Request, lora: str | None = None) -> Parsed:
        """Check what the envelope holds, and make its prompts."""
        # the library finds entities in any string, and nothing in an empty one
        texts = texts_of(data.text, data.texts, self.limits, anything=True)
        label_lists = request.labels_of(data, len(texts), self.limits)
        span_lists = request.spans_of(data, len(texts))
        prepared_texts: list[PreparedText] = []
        parts: list[Part] = []
        known: dict[tuple[str, ...], Labels] = {}
        pairs = 0
        for position, (text, names, spans) in enumerate(zip(texts, label_lists, span_lists, strict=True)):
            words = splitter.split(text)
            allowed = None if spans is None else aligned(text, words, spans)
            if (labels := known.get(names)) is None:
                labels = known[names] = self._labels(data, position, names)
            if not words or not names:
                kept = len(words) if data.overflow == "truncate" else None
                prepared_texts.append(PreparedText(text, words, names, allowed, (), kept, len(words)))
                continue
            prepared, built = self._read(data, position, text, words, names, allowed, labels)
            prepared_texts.append(prepared)
            pairs += sum(len(prompt.words) for prompt in built) * self._config.max_width * len(names)
            request.check_candidates(data, pairs, self.limits)
            parts += (_part(data, prompt, labels) for prompt in built)
            if len(parts) > self.limits.prompts:
                raise InvalidRequest(
                    f"the texts up to this one are read in more than {self.limits.prompts} parts, the limit",
                    param=request.text_path(data, position),
                )
        packs = pack(parts, self._engine_limit)
        left = iter(parts)
        prompts = [_prompt(list(islice(left, count))) for count in packs]
        return Parsed(data, lora, prepared_texts, parts, packs, prompts)

    async def run(self, request: Parsed, engine: Engine) -> Response:
        """Answer with the entities of each text, in the order of the texts."""
        tables = await engine.encode(request.prompts, lora=request.lora)
        candidates = sum(len(table) for table in tables)
        size = len(request.texts) * MICROSECONDS_PER_TEXT + candidates * MICROSECONDS_PER_CANDIDATE
        return await engine.compute(self._response, request, tables, size=size)

    def _response(self, parsed: Parsed, tables: Sequence[torch.Tensor]) -> Response:
        """Return the response to the tables of candidates of all prompts.

        Raises:
            InvalidRequest: There are too many entities for one answer.
        """
        results: list[Result] = []
        count = 0
        each = unpack(tables, parsed)
        for text in parsed.texts:
            found = candidates(text, list(islice(each, len(text.chunks))))
            rows = chosen(text, found, parsed.data)
            request.check_entities(count := count + rows.size, self.limits)
            results.append(result_of(text, entities(text, found, rows, parsed.data), parsed.data))
        usage = Usage(parsed.prompt_tokens, sum(text.words_sent for text in parsed.texts))
        body: SingleBody | Body = Body(Answer(results, usage))
        if parsed.data.text is not None:
            (one,) = results
            body = SingleBody(SingleAnswer(one.entities, one.truncated, one.words_kept, one.chunks, usage=usage))
        return Response(body=msgspec.json.encode(body), prompt_tokens=usage.prompt_tokens)

    def _labels(self, data: Request, position: int, names: tuple[str, ...]) -> Labels:
        try:
            labels = self._builder.labels(names)
        except LabelProblem as problem:
            path = request.label_path(data, position, names[problem.position])
            raise InvalidRequest(str(problem), param=path) from None
        if self._tokens_left(labels) < 1:
            raise InvalidRequest(
                f"{len(names)} labels are {len(labels.tokens)} tokens; the model takes {self._most_tokens} with the text",
                param=request.labels_path(data, position),
            )
        return labels

    def _tokens_left(self, labels: Labels) -> int:
        """Return the number of tokens that are left for the words."""
        return self._most_tokens - len(labels.tokens) - self._builder.behind

    def _read(
        self,
        data: Request,
        position: int,
        text: str,
        words: list[str],
        names: tuple[str, ...],
        allowed: frozenset[tuple[int, int]] | None,
        labels: Labels,
    ) -> tuple[PreparedText, list[BuiltPrompt]]:
        """Return how a text with words is read, and its prompts."""
        path = request.text_path(data, position)
        if data.overflow == "chunk":
            pieces = self._builder.word_tokens(words)
            parts = self._plan(text, words, pieces, self._tokens_left(labels), path)
            prompts = [self._builder.build(labels, pieces[part.begin : part.end]) for part in parts]
            return PreparedText(text, words, names, allowed, parts, None, len(words)), prompts
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
        return PreparedText(text, read, names, allowed, [Chunk(0, len(read))], kept, len(words)), [prompt]

    def _plan(
        self, text: str, words: Sequence[str], pieces: Sequence[Tokens], most_tokens: int, path: str
    ) -> Sequence[Chunk]:
        lengths = list(map(len, pieces))
        most = self._config.max_words
        if len(words) <= most and sum(lengths) <= most_tokens:
            return [Chunk(0, len(words))]
        borders = chunks.sentence_ends(words, chunks.line_starts(text, splitter.starts(text, words)))
        try:
            return chunks.plan(
                lengths,
                most_words=most,
                most_tokens=most_tokens,
                overlap=self._config.max_width,
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


def _part(data: Request, built: BuiltPrompt, labels: Labels) -> Part:
    classes = min(request.CLASS_PROBABILITIES, len(labels.positions)) if data.return_class_probs else 0
    return Part(built.tokens, Item(built.words, labels.positions, data.threshold, classes))


def _prompt(parts: Sequence[Part]) -> Prompt:
    if len(parts) == 1:
        item = parts[0].item
        parameters = payload.encode(item.words, item.labels, item.threshold, item.classes)
    else:
        parameters = payload.encode_texts([part.item for part in parts], [len(part.tokens) for part in parts])
    return Prompt(token_ids=[*chain.from_iterable(part.tokens for part in parts)], parameters=parameters)


def pack(parts: Sequence[Part], most_tokens: int) -> list[int]:
    """Return the number of parts of each prompt: as many as fit, in order.

    An engine request costs its scheduler and its runner the same whether it holds one text or thirty. Nothing of a text
    depends on the others of its prompt. Parts of one prompt share the number of classes that come along.
    """
    packs: list[int] = []
    tokens = classes = 0
    for part in parts:
        tokens += len(part.tokens)
        if packs and tokens <= most_tokens and part.item.classes == classes:
            packs[-1] += 1
        else:
            packs.append(1)
            tokens, classes = len(part.tokens), part.item.classes
    return packs


def unpack(tables: Sequence[torch.Tensor], parsed: Parsed) -> Iterator[torch.Tensor]:
    """Yield the candidates of each part, counted in its own words, from those of each prompt."""
    left = iter(parsed.parts)
    for table, count in zip(tables, parsed.packs, strict=True):
        words = [len(part.item.words) for part in islice(left, count)]
        if count == 1 or not table.numel():
            yield from [table] * count
            continue
        ends = np.cumsum(words)
        part_of = np.searchsorted(ends, table[:, payload.START].float().numpy(), side="right")
        order = torch.from_numpy(np.argsort(part_of, kind="stable"))
        counts = np.bincount(part_of, minlength=count).tolist()
        for begin, rows in zip([0, *ends.tolist()], torch.split(table[order].float(), counts), strict=False):
            # rows is a view of a copy that nothing else uses
            rows[:, payload.START] -= begin
            yield rows


def read_config(folder: Path) -> GlinerConfig:
    """Return GLiNER's part of an artifact's config.json."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return GlinerConfig.from_dict(values[config.KEY])


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


def aligned(text: str, words: Sequence[str], spans: Sequence[request.CharacterSpan]) -> frozenset[tuple[int, int]]:
    """Return the (first word, last word) of those spans that begin and end with words."""
    starts = splitter.starts(text, words)
    first = {start: position for position, start in enumerate(starts)}
    last = {start + len(word): position for position, (start, word) in enumerate(zip(starts, words, strict=True))}
    found = ((first.get(span.start, -1), last.get(span.end, -1)) for span in spans)
    return frozenset((begin, end) for begin, end in found if 0 <= begin <= end)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the pooler found in a text.

    Attributes:
        spans: `[candidates, 3]`: first word, further words, and label.
        score: `[candidates]`: the probability.
        best: `[candidates, 2 * classes]` float32: labels and logits in pairs.
    """

    spans: NDArray[np.int64]
    score: NDArray[np.float32]
    best: torch.Tensor


def candidates(text: PreparedText, tables: Sequence[torch.Tensor]) -> Candidates:
    """Return the candidates of a text, counted in its words; ``tables`` are those of its chunks, as the pooler gives them."""
    if len(tables) == 1 and tables[0].numel():
        return _read_table(tables[0].float())
    parts = []
    for number, table in enumerate(tables):
        if not table.numel():
            continue
        found = table.float()
        if len(text.chunks) > 1:
            found = found.clone()
            found[:, payload.START] += text.chunks[number].begin
            start, further = found[:, : payload.CLASS].numpy().astype(np.int64).T
            found = found[torch.from_numpy(chunks.owned(text.chunks, number, start, start + further))]
        parts.append(found)
    return _read_table(torch.cat(parts) if parts else torch.zeros(0, payload.COLUMNS))


def _read_table(table: torch.Tensor) -> Candidates:
    spans = table.numpy()[:, : payload.LOGIT].astype(np.int64)
    return Candidates(spans, probabilities(table[:, payload.LOGIT]), table[:, payload.COLUMNS :])


def chosen(text: PreparedText, found: Candidates, data: Request) -> NDArray[np.int64]:
    """Return which candidates are the entities, in order."""
    return decode.keep(
        found.spans[:, payload.START],
        found.spans[:, payload.WIDTH],
        found.spans[:, payload.CLASS],
        found.score,
        # the library also finds entities in words that its tokenizer cut off, which it scores as rows of zeros
        words=len(text.words) if text.words_kept is None else text.words_kept,
        threshold=data.threshold,
        flat=data.flat_ner,
        multi_label=data.multi_label,
        allowed=text.allowed,
    )


def entities(text: PreparedText, found: Candidates, rows: NDArray[np.int64], data: Request) -> list[Entity]:
    """Return the entities that the candidates in ``rows`` are."""
    if not rows.size:
        return []
    begin, further, label = found.spans[rows].T.tolist()
    end = [first + more for first, more in zip(begin, further, strict=True)]
    starts = splitter.starts(text.text, text.words, max(end) + 1)
    likely = class_probabilities(text, found, rows) if data.return_class_probs else [None] * rows.size
    made: list[Entity] = []
    for first, last, name, score, probs in zip(begin, end, label, found.score[rows].tolist(), likely, strict=True):
        left, right = starts[first], starts[last] + len(text.words[last])
        made.append(Entity(left, right, text.text[left:right], text.labels[name], score, probs))
    return made


def class_probabilities(
    text: PreparedText, found: Candidates, rows: NDArray[np.int64]
) -> list[dict[str, float] | None]:
    """Return the best labels of each row with their probabilities."""
    best = found.best[torch.from_numpy(rows)]
    names = best[:, 0::2].numpy().astype(np.int64).tolist()
    scores = probabilities(best[:, 1::2]).tolist()
    return [
        dict(zip(map(text.labels.__getitem__, labels), likely, strict=True))
        for labels, likely in zip(names, scores, strict=True)
    ]


def probabilities(logits: torch.Tensor) -> NDArray[np.float32]:
    """Return the sigmoid, to the last bit as the library computes it: ties and thresholds depend on that."""
    result: NDArray[np.float32] = torch.sigmoid(logits.contiguous()).numpy()
    return result


def result_of(text: PreparedText, found: list[Entity], data: Request) -> Result:
    """Return the answer for one text."""
    kept = text.words_kept
    return Result(
        entities=found,
        truncated=None if kept is None else kept < text.words_sent,
        words_kept=kept,
        chunks=len(text.chunks) if data.overflow == "chunk" else None,
    )
