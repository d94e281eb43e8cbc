"""Request and answer of the GLiNER plugins: texts and labels to prompts, and candidates to entities.

The engine gets token ids and where words and labels are; it answers with the spans above the threshold. Everything that
needs words, offsets or the names of labels happens here, in threads of the API process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from vllm import PoolingParams, PoolingRequestOutput
from vllm.config import VllmConfig
from vllm.inputs import PromptType, TokensPrompt
from vllm.renderers import BaseRenderer

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import chunks, config, decode, payload, request
from encoder_plugins.families.gliner import words as splitter
from encoder_plugins.families.gliner.chunks import Chunk
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.prompt import LabelProblem, Labels, Prompt, PromptBuilder, Tokens
from encoder_plugins.families.gliner.request import Request
from encoder_plugins.serving.http.body import Data
from encoder_plugins.serving.processor import EncoderProcessor, OwnParams

TASK = "token_classify"

# transformers writes "no limit" as a number beyond this one, and other people as one beyond what any text has
UNLIMITED = 10**9

Entity = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """How one text is read.

    Attributes:
        text: As it was sent.
        words: Those that the model gets.
        labels: Different from each other.
        allowed: The only (first word, last word) that can be entities; None for all.
        chunks: The parts of it, one prompt each; none where there is nothing to find.
        words_kept: How many words were not cut off; None unless the client chose to have them cut off.
        words_sent: How many words the text has.
    """

    text: str
    words: Sequence[str]
    labels: tuple[str, ...]
    allowed: frozenset[tuple[int, int]] | None
    chunks: Sequence[Chunk]
    words_kept: int | None
    words_sent: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request: what the engine gets, and what the answer needs."""

    data: Request
    readings: list[Reading]
    token_ids: list[list[int]]
    extras: list[dict[str, Any]]

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the engine reads for this request; a prompt that stands for nothing is not counted."""
        return sum(map(len, self.token_ids)) if any(reading.chunks for reading in self.readings) else 0


class GlinerProcessor(EncoderProcessor[Request, Prepared]):
    """Serves the entities of one GLiNER checkpoint."""

    data_type: ClassVar[type[Data]] = Request

    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> None:
        super().__init__(vllm_config, renderer)
        folder = Path(vllm_config.model_config.model)
        self.gliner = read_config(folder)
        tokenizer, tokenizer_limit = read_tokenizer(folder)
        self.builder = PromptBuilder(tokenizer, self.gliner, tokenizer_limit=tokenizer_limit)
        self.engine_limit: int = vllm_config.model_config.max_model_len
        self.most_tokens: int = min(self.engine_limit, tokenizer_limit or self.engine_limit)

    def prepare(self, data: Request) -> Prepared:
        """Check the request and make its prompts."""
        texts = request.texts_of(data, self.settings.limits)
        label_lists = request.labels_of(data, len(texts))
        span_lists = request.spans_of(data, len(texts))
        prepared = Prepared(data, [], [], [])
        lists: dict[tuple[str, ...], Labels] = {}
        pairs = 0
        for position, (text, labels, spans) in enumerate(zip(texts, label_lists, span_lists, strict=True)):
            words = splitter.split(text)
            allowed = None if spans is None else aligned(text, words, spans)
            if (asked := lists.get(labels)) is None:
                asked = lists[labels] = self._labels(data, position, labels)
            if not words or not labels:
                kept = len(words) if data.overflow == "truncate" else None
                prepared.readings.append(Reading(text, words, labels, allowed, (), kept, len(words)))
                continue
            reading, prompts = self._read(data, position, text, words, labels, allowed, asked)
            prepared.readings.append(reading)
            pairs += sum(len(prompt.words) for prompt in prompts) * self.gliner.max_width * len(labels)
            request.check_candidates(data, pairs)
            for prompt in prompts:
                self._add(prepared, prompt.tokens, prompt.words, asked.positions, labels)
            if len(prepared.token_ids) > request.PROMPTS:
                raise InvalidRequest(
                    f"the texts up to this one are read in more than {request.PROMPTS} parts, the limit",
                    param=request.text_path(data, position),
                )
        if not prepared.token_ids:
            # nothing to read, but vLLM takes no request without a prompt
            prepared.token_ids.append(self.builder.minimal())
            prepared.extras.append(payload.encode([1], [0], 1.0))
        return prepared

    def prompts(self, prepared: Prepared) -> Sequence[PromptType]:
        """Return one prompt for each text, or for each part of one."""
        return [TokensPrompt(prompt_token_ids=ids) for ids in prepared.token_ids]

    def pooling_params(self, prepared: Prepared) -> Sequence[PoolingParams]:
        """Return where the words and labels of each prompt are."""
        return [OwnParams(task=TASK, extra_kwargs=extra) for extra in prepared.extras]

    def answer(self, prepared: Prepared, outputs: Sequence[PoolingRequestOutput]) -> dict[str, Any]:
        """Return the entities of each text, in the order of the texts.

        Raises:
            InvalidRequest: There are too many for one answer.
        """
        results: list[dict[str, Any]] = []
        place = count = 0
        for reading in prepared.readings:
            tables = [output.outputs.data for output in outputs[place : place + len(reading.chunks)]]
            place += len(reading.chunks)
            found = candidates(reading, tables)
            rows = chosen(reading, found, prepared.data)
            request.check_entities(count := count + rows.size)
            results.append(result_of(reading, entities(reading, found, rows, prepared.data), prepared.data))
        usage = {
            "prompt_tokens": prepared.prompt_tokens,
            "words": sum(reading.words_sent for reading in prepared.readings),
        }
        if prepared.data.text is not None:
            return {**results[0], "usage": usage}
        return {"results": results, "usage": usage}

    def _labels(self, data: Request, position: int, labels: tuple[str, ...]) -> Labels:
        try:
            asked = self.builder.labels(labels)
        except LabelProblem as problem:
            path = request.label_path(data, position, labels[problem.position])
            raise InvalidRequest(str(problem), param=path) from None
        if self._room(asked) < 1:
            raise InvalidRequest(
                f"{len(labels)} labels are {len(asked.tokens)} tokens; the model takes {self.most_tokens} with the text",
                param=request.labels_path(data, position),
            )
        return asked

    def _room(self, asked: Labels) -> int:
        """Return how many tokens are left for the words."""
        return self.most_tokens - len(asked.tokens) - self.builder.behind

    def _read(
        self,
        data: Request,
        position: int,
        text: str,
        words: list[str],
        labels: tuple[str, ...],
        allowed: frozenset[tuple[int, int]] | None,
        asked: Labels,
    ) -> tuple[Reading, list[Prompt]]:
        """Return how a text with words is read, and its prompts."""
        path = request.text_path(data, position)
        if data.overflow == "chunk":
            pieces = self.builder.word_tokens(words)
            parts = self._plan(text, words, pieces, self._room(asked), path)
            prompts = [self.builder.build(asked, pieces[part.begin : part.end]) for part in parts]
            return Reading(text, words, labels, allowed, parts, None, len(words)), prompts
        most = self.gliner.max_words
        if len(words) > most and data.overflow == "refuse":
            raise InvalidRequest(
                f'the text has {len(words)} words; the model takes {most}. "overflow" can be "chunk" or "truncate"',
                param=path,
            )
        read = words[:most]
        prompt = self.builder.build(asked, self.builder.word_tokens(read))
        if data.overflow == "refuse" and (prompt.cut or len(prompt.tokens) > self.engine_limit):
            raise InvalidRequest(
                f"labels and text are {len(prompt.tokens) + prompt.cut} tokens; the model takes {self.most_tokens}."
                ' "overflow" can be "chunk" or "truncate"',
                param=path,
            )
        if len(prompt.tokens) > self.engine_limit:
            # the library would read it all: to cut here would be another answer than its own
            raise InvalidRequest(
                f"labels and text are {len(prompt.tokens)} tokens; this server takes {self.engine_limit}."
                ' "overflow" can be "chunk"',
                param=path,
            )
        kept = prompt.words_kept if data.overflow == "truncate" else None
        return Reading(text, read, labels, allowed, [Chunk(0, len(read))], kept, len(words)), [prompt]

    def _plan(self, text: str, words: Sequence[str], pieces: Sequence[Tokens], room: int, path: str) -> Sequence[Chunk]:
        lengths = list(map(len, pieces))
        most = self.gliner.max_words
        if len(words) <= most and sum(lengths) <= room:
            return [Chunk(0, len(words))]
        borders = chunks.sentence_ends(words, chunks.line_starts(text, splitter.starts(text, words)))
        try:
            return chunks.plan(
                lengths,
                most_words=most,
                most_tokens=room,
                overlap=self.gliner.max_width,
                most_parts=request.PROMPTS,
                borders=borders,
            )
        except chunks.TooManyParts as error:
            raise InvalidRequest(
                f"beside these labels {request.PROMPTS} parts, the limit, hold {error.words} words; the text has"
                f" {len(words)}",
                param=path,
            ) from None
        except chunks.WordsTooLong as error:
            begin, end = error.chunk
            raise InvalidRequest(
                f"the words {begin} to {end - 1} are {error.tokens} tokens; beside the labels the model takes {room}",
                param=path,
            ) from None

    def _add(
        self,
        prepared: Prepared,
        tokens: list[int],
        words: NDArray[np.int32],
        labels: NDArray[np.int32],
        names: tuple[str, ...],
    ) -> None:
        data = prepared.data
        classes = min(request.CLASS_PROBABILITIES, len(names)) if data.return_class_probs else 0
        prepared.token_ids.append(tokens)
        prepared.extras.append(payload.encode(words, labels, data.threshold, classes))


def read_config(folder: Path) -> GlinerConfig:
    """Return GLiNER's part of an artifact's config.json."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return GlinerConfig.from_dict(values[config.KEY])


def read_tokenizer(folder: Path) -> tuple[Tokenizer, int | None]:
    """Return the library's tokenizer as prep saved it, and how many tokens it takes; None for all.

    Not through transformers: its classes rebuild some tokenizers when they load them.
    """
    about = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if (side := about.get("truncation_side", "right")) != "right":
        raise ValueError(f"the tokenizer cuts texts off at the {side}; only the right is supported")
    limit = about.get("model_max_length", UNLIMITED)
    return Tokenizer.from_file(str(folder / "tokenizer.json")), None if limit >= UNLIMITED else int(limit)


def aligned(text: str, words: Sequence[str], spans: Sequence[request.CharacterSpan]) -> frozenset[tuple[int, int]]:
    """Return the (first word, last word) of those spans that begin and end with words."""
    starts = splitter.starts(text, words)
    first = {start: place for place, start in enumerate(starts)}
    last = {start + len(word): place for place, (start, word) in enumerate(zip(starts, words, strict=True))}
    found = ((first.get(span.start, -1), last.get(span.end, -1)) for span in spans)
    return frozenset((begin, end) for begin, end in found if 0 <= begin <= end)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the pooler found in a text.

    Attributes:
        place: `[candidates, 3]`: first word, further words, and label.
        score: `[candidates]`: the probability.
        best: `[candidates, 2 * classes]` float32: labels and logits in pairs.
    """

    place: NDArray[np.int64]
    score: NDArray[np.float32]
    best: torch.Tensor


def candidates(reading: Reading, tables: Sequence[torch.Tensor]) -> Candidates:
    """Return the candidates of a text, counted in its words; ``tables`` are those of its parts, as the pooler gives them."""
    if len(tables) == 1 and tables[0].numel():
        return _read_table(tables[0].float())
    parts = []
    for number, table in enumerate(tables):
        if not table.numel():
            continue
        found = table.float()
        if len(reading.chunks) > 1:
            found = found.clone()
            found[:, payload.START] += reading.chunks[number].begin
            start, further = found[:, : payload.CLASS].numpy().astype(np.int64).T
            found = found[torch.from_numpy(chunks.owned(reading.chunks, number, start, start + further))]
        parts.append(found)
    return _read_table(torch.cat(parts) if parts else torch.zeros(0, payload.COLUMNS))


def _read_table(table: torch.Tensor) -> Candidates:
    place = table.numpy()[:, : payload.LOGIT].astype(np.int64)
    return Candidates(place, probabilities(table[:, payload.LOGIT]), table[:, payload.COLUMNS :])


def chosen(reading: Reading, found: Candidates, data: Request) -> NDArray[np.int64]:
    """Return which candidates are the entities, in order."""
    return decode.keep(
        found.place[:, payload.START],
        found.place[:, payload.WIDTH],
        found.place[:, payload.CLASS],
        found.score,
        words=len(reading.words),
        threshold=data.threshold,
        flat=data.flat_ner,
        multi_label=data.multi_label,
        allowed=reading.allowed,
    )


def entities(reading: Reading, found: Candidates, rows: NDArray[np.int64], data: Request) -> list[Entity]:
    """Return the entities that the candidates in ``rows`` are."""
    if not rows.size:
        return []
    begin, further, label = found.place[rows].T.tolist()
    end = [first + more for first, more in zip(begin, further, strict=True)]
    starts = splitter.starts(reading.text, reading.words, max(end) + 1)
    made: list[Entity] = []
    for first, last, name, score in zip(begin, end, label, found.score[rows].tolist(), strict=True):
        left, right = starts[first], starts[last] + len(reading.words[last])
        made.append(
            {
                "start": left,
                "end": right,
                "text": reading.text[left:right],
                "label": reading.labels[name],
                "score": score,
            }
        )
    if data.return_class_probs:
        best = found.best[torch.from_numpy(rows)]
        names = best[:, 0::2].numpy().astype(np.int64).tolist()
        scores = probabilities(best[:, 1::2]).tolist()
        for entity, labels, likely in zip(made, names, scores, strict=True):
            entity["class_probs"] = dict(zip(map(reading.labels.__getitem__, labels), likely, strict=True))
    return made


def probabilities(logits: torch.Tensor) -> NDArray[np.float32]:
    """Return the sigmoid, to the last bit as the library computes it: ties and thresholds depend on that."""
    result: NDArray[np.float32] = torch.sigmoid(logits.contiguous()).numpy()
    return result


def result_of(reading: Reading, found: list[Entity], data: Request) -> dict[str, Any]:
    """Return the answer for one text."""
    result: dict[str, Any] = {"entities": found}
    if reading.words_kept is not None:
        result["truncated"] = reading.words_kept < reading.words_sent
        result["words_kept"] = reading.words_kept
    if data.overflow == "chunk":
        result["chunks"] = len(reading.chunks)
    return result
