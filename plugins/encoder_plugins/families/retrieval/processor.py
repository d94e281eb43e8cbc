"""Requests to retrievers of one vector per token: texts to rows, or documents to scores.

A request for scores has two rounds: the queries are encoded, then their rows travel with each document to the engine, which
answers with numbers. No rows of documents leave it, and nothing is kept between requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.embedding.config import padding_token
from encoder_plugins.families.retrieval import payload, quantization, request, rerank, token_pooling
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.request import RetrievalLimits, RowsAnswer, TextRequest, Wanted
from encoder_plugins.families.retrieval.scoring import Origin, ScoresAnswer, Scoring, Texts, list_of
from encoder_plugins.families.retrieval.settings import CONFIG
from encoder_plugins.families.retrieval.tokens import TextTokenizer, TokenisedText
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.plugin import Route
from encoder_plugins.prep.checkpoint_json import read_object
from encoder_plugins.serving import limits
from encoder_plugins.serving.packing import MOST_TOKENS, grouped, pack
from encoder_plugins.serving.processor import Engine, Part, Prompt, Response, Schema, ServingContext

if TYPE_CHECKING:
    from torch import Tensor

# numbers that are written in a microsecond
NUMBERS_PER_MICROSECOND = 16
# of a row on its way to the engine
BYTES_PER_NUMBER = 4
# for a text's prompt, and its parameters
MICROSECONDS_PER_PROMPT = 10
# characters of documents that are tokenised at once, and in a microsecond: the engine computes them while the next ones are
PART_CHARACTERS = 1 << 16
CHARACTERS_PER_MICROSECOND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A checked request.

    Attributes:
        texts: Those whose rows are wanted, or the first of the documents.
        further: The other documents, which are tokenised while the engine has those before them.
        queries: What the documents are scored by; None where rows are wanted.
        scoring: How scores are answered; None where rows are wanted.
        wanted: How rows are.
        lora: The adapter; None for none.
        origins: Where each of ``texts`` comes from, where one document of the request became several; None where each is one.
    """

    texts: Sequence[TokenisedText]
    further: Sequence[Texts] = ()
    queries: Sequence[TokenisedText] | None = None
    scoring: Scoring | None = None
    wanted: Wanted = field(default_factory=Wanted)
    lora: str | None = None
    origins: Sequence[Origin] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all texts and queries but the further documents."""
        return sum(text.tokens for text in [*self.texts, *(self.queries or ())])


class MultiVectorProcessor:
    """Serves one checkpoint of one vector per token.

    Attributes:
        packs_texts: Whether the engine takes several texts in one prompt: whether the model knows token marks.
    """

    packs_texts: ClassVar[bool] = True
    schemas: ClassVar[Mapping[str, Schema]] = {
        "pooling": Schema(Envelope[TextRequest], RowsAnswer, ScoresAnswer, binary=True),
        **rerank.SCHEMAS,
    }

    def __init__(self, context: ServingContext) -> None:
        # takes a second, which no request should wait for
        import scipy.cluster.hierarchy  # noqa: F401

        self.limits = limits.typed(RetrievalLimits, context.limits)
        self._context = context
        # tokens of a shared prompt; with 1, each text has a prompt of its own
        self._most_tokens = min(MOST_TOKENS, context.max_model_len) if self.packs_texts else 1
        self._config = read_served(context.model)
        self._tokenizer = self._build_tokenizer(context.model)
        self._ranges = quantization.Ranges(context.model, self._config.dimensions)
        # of an encoder that numbers positions without it
        self._padding = padding_token(read_object(context.model, CONFIG))

    def _build_tokenizer(self, model: Path) -> TextTokenizer:
        return TextTokenizer(model, self._config)

    def parse(self, route: Route, body: bytes) -> Parsed:
        """Check the request and tokenise its texts."""
        found: Any = bodies.decode(body, self.schemas[route.schema].request)
        lora = bodies.adapter_of(found.model, found.lora, self._context.names, self._context.adapters)
        if route.schema == "rerank":
            return self._scored(self._check_rerank(found), lora)
        if route.schema == "score":
            return self._scored(rerank.check_score(found, self.limits), lora)
        checked = self._check(found.data)
        if isinstance(checked, Scoring):
            return self._scored(checked, lora)
        texts, wanted = checked
        if wanted.dimensions is not None and wanted.dimensions > self._config.dimensions:
            raise InvalidRequest(
                f"{wanted.dimensions} is more than the model's {self._config.dimensions}", param="data.dimensions"
            )
        self._ranges.check(wanted.dtype)
        tokenised = self._tokenised(texts)
        if wanted.pool_factor is not None:
            self._check_pooling(tokenised, texts.path)
        return Parsed(texts=tokenised, wanted=wanted, lora=lora)

    def _check(self, data: Any) -> tuple[Texts, Wanted] | Scoring:
        return request.check_prompted(data, self.limits, self._config.prompts)

    def _check_rerank(self, data: Any) -> Scoring:
        return rerank.check_rerank(data, self.limits, most_tokens=self._config.document.most_tokens)

    def _scored(self, found: Scoring, lora: str | None) -> Parsed:
        queries, documents = self._tokenised(found.queries), found.documents
        self._check_scored(found, queries, 1 if found.pairs else len(documents.texts))
        first, *further = documents.parts(PART_CHARACTERS)
        return Parsed(texts=self._tokenised(first), further=further, queries=queries, scoring=found, lora=lora)

    def _check_scored(self, found: Scoring, queries: Sequence[TokenisedText], times: int) -> None:
        """Refuse queries whose rows are too many bytes, ``times`` as often as they are sent to the engine."""
        rows = sum(query.rows for query in queries)
        size = rows * self._config.dimensions * BYTES_PER_NUMBER * times
        if size > self.limits.score_bytes:
            copies = f", once for each of {times} documents," if times > 1 else ""
            raise InvalidRequest(
                f"{rows} rows of queries{copies} are {size} bytes; the limit is {self.limits.score_bytes} a request:"
                " send fewer documents or queries at once",
                param=list_of(found.documents),
            )

    def _tokenised(self, found: Texts) -> list[TokenisedText]:
        texts = self._tokenizer(found.texts, found.kind, found.prompt)
        for position, text in enumerate(texts):
            self._check_length(text, found.where(position))
            if self._padding is not None and self._padding in text.ids:
                raise InvalidRequest(
                    "the text holds the model's padding token, of which the reference counts no position",
                    param=found.where(position),
                )
            if not text.rows:
                raise InvalidRequest(
                    "the text has no rows: each of its tokens is in the checkpoint's skiplist",
                    param=found.where(position),
                )
        return texts

    def _check_length(self, text: TokenisedText, path: str) -> None:
        if text.tokens > self._context.max_model_len:
            raise InvalidRequest(f"{text.tokens} tokens; this server takes {self._context.max_model_len}", param=path)

    def _check_pooling(self, texts: Sequence[TokenisedText], path: str) -> None:
        for position, text in enumerate(texts):
            if text.rows > self.limits.pooled_rows:
                raise InvalidRequest(
                    f"the text has {text.rows} rows; pool_factor merges those of texts of up to"
                    f" {self.limits.pooled_rows} (the limit pooled_rows)",
                    param=path.format(position),
                )

    async def run(self, request: Parsed, engine: Engine) -> Response:
        """Answer with rows in the order of the texts, or with the scores of the documents."""
        if request.queries is None:
            pooled = await self._encode(request.texts, request.lora, engine)
            return await engine.compute(self._rows_response, request, pooled, size=_microseconds(request, pooled))
        if not engine.concurrent:
            request = self._whole(request)
        assert request.queries is not None
        assert request.scoring is not None
        encoded = await self._encode(request.queries, request.lora, engine)
        size = sum(rows.numel() for rows in encoded) // NUMBERS_PER_MICROSECOND + MICROSECONDS_PER_PROMPT * len(encoded)
        queries = await engine.compute(_packed, encoded, request.scoring.pairs, size=size)
        tokens = request.prompt_tokens

        def further(found: Texts) -> Sequence[Prompt]:
            nonlocal tokens
            texts = self._tokenised(found)
            tokens += sum(text.tokens for text in texts)
            return _scored_prompts(texts, queries, found.first, self._most_tokens)

        first = partial(_scored_prompts, request.texts, queries, 0, self._most_tokens)
        parts = [Part(make=first, size=MICROSECONDS_PER_PROMPT * len(request.texts))]
        parts += [
            Part(make=partial(further, found), size=_microseconds_to_tokenise(found)) for found in request.further
        ]
        scored = await engine.encode_parts(parts, lora=request.lora)
        size = rerank.microseconds(request.scoring)
        return await engine.compute(self._scores_response, request, scored, tokens, size=size)

    def _whole(self, request: Parsed) -> Parsed:
        """Return a request all of whose documents are tokenised."""
        further = [text for found in request.further for text in self._tokenised(found)]
        return replace(request, texts=[*request.texts, *further], further=())

    async def _encode(self, texts: Sequence[TokenisedText], lora: str | None, engine: Engine) -> list[Tensor]:
        """Return the rows of each text."""
        packs = pack([text.tokens for text in texts], self._most_tokens)
        prompts = await engine.compute(_prompts, texts, packs, size=MICROSECONDS_PER_PROMPT * len(texts))
        return _rows_of_texts(await engine.encode(prompts, lora=lora), grouped(texts, packs))

    def _rows_response(self, request: Parsed, pooled: Sequence[Tensor]) -> Response:
        wanted = request.wanted
        texts = [self._finished(_numpy(rows), wanted.dimensions) for rows in pooled]
        if wanted.pool_factor is not None:
            texts = [_pooled(rows, wanted.pool_factor) for rows in texts]
        ranges = self._ranges.of(wanted.dtype, wanted.dimensions, lambda rows: self._finished(rows, wanted.dimensions))
        counts = [len(rows) for rows in texts]
        tokens = request.prompt_tokens
        numbers = self._numbers(request)
        if wanted.encoding == "bytes":
            content, headers = encodings.encode_bytes(np.concatenate(texts), wanted.dtype, ranges)
            described = {
                f"x-encoder-{name}": ",".join("" if number is None else str(number) for number in each)
                for name, each in numbers.items()
            }
            described |= {**headers, "x-encoder-rows": ",".join(map(str, counts))}
            return Response(body=content, media_type=encodings.BINARY, prompt_tokens=tokens, headers=described)
        data: dict[str, Any] = {
            "embeddings": encodings.encoded_matrices(texts, wanted.encoding, wanted.dtype, ranges),
            "rows": counts,
            "dimensions": texts[0].shape[1],
            "encoding": wanted.encoding,
            "embedding_dtype": wanted.dtype,
            "usage": {"prompt_tokens": tokens},
            **numbers,
        }
        if wanted.tokens:
            data["tokens"] = [self._row_tokens(text) for text in request.texts]
        return Response(body=msgspec.json.encode({"data": data}), prompt_tokens=tokens)

    def _numbers(self, request: Parsed) -> Mapping[str, Sequence[int | None]]:
        """Return what else the answer has about the texts by name: one number for each, or None."""
        return {}

    def _finished(self, rows: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
        return quantization.cut(rows, dimensions, normalize=self._config.normalize)

    def _row_tokens(self, text: TokenisedText) -> dict[str, Any]:
        ids = text.ids if text.kept is None else np.asarray(text.ids)[text.kept].tolist()
        return {"ids": ids, "tokens": self._tokenizer.strings(ids)}

    def _scores_response(self, request: Parsed, scored: Sequence[Tensor], tokens: int) -> Response:
        scoring = request.scoring
        assert scoring is not None
        scores = np.concatenate([_numpy(each) for each in scored]).T  # [queries, documents], or [1, pairs]
        documents = len(scoring.documents.texts if scoring.origins is None else scoring.origins)
        if scores.shape[1] != documents:
            raise RuntimeError(f"the engine scored {scores.shape[1]} documents of {documents}")
        body = rerank.answer(scoring, scores, tokens=tokens, name=request.lora or self._context.names[0])
        return Response(body=body, prompt_tokens=tokens)


def _microseconds(request: Parsed, pooled: Sequence[Tensor]) -> int:
    """Return about how long it takes to write the rows."""
    written = sum(rows.numel() for rows in pooled) // NUMBERS_PER_MICROSECOND
    if request.wanted.pool_factor is None:
        return written
    return written + sum(token_pooling.microseconds(len(rows)) for rows in pooled)


def _packed(encoded: Sequence[Tensor], pairs: bool) -> list[payload.Queries]:
    """Return the rows of each query, or those of all queries as one."""
    rows = [_numpy(each) for each in encoded]
    return [payload.pack_queries([own]) for own in rows] if pairs else [payload.pack_queries(rows)]


def _microseconds_to_tokenise(texts: Texts) -> int:
    return sum(map(len, texts.texts)) // CHARACTERS_PER_MICROSECOND + MICROSECONDS_PER_PROMPT * len(texts.texts)


def _prompts(texts: Sequence[TokenisedText], packs: Sequence[int]) -> list[Prompt]:
    return [_prompt(some) for some in grouped(texts, packs)]


def _scored_prompts(
    texts: Sequence[TokenisedText], queries: Sequence[payload.Queries], first: int, most_tokens: int
) -> list[Prompt]:
    """Return prompts of documents with the rows of all queries, or of each document with those of the query of its own pair.

    Args:
        texts: The documents.
        queries: One for each pair of the request, or one for all documents.
        first: The position of the first of the documents in the request.
        most_tokens: Tokens of a shared prompt.
    """
    if len(queries) > 1:
        own = queries[first : first + len(texts)]
        return [_prompt([text], each) for text, each in zip(texts, own, strict=True)]
    packs = pack([text.tokens for text in texts], most_tokens)
    return [_prompt(some, queries[0]) for some in grouped(texts, packs)]


def _prompt(texts: Sequence[TokenisedText], queries: payload.Queries | None = None) -> Prompt:
    """Return the prompt of some texts; one with an image has no other."""
    first = texts[0]
    return Prompt(
        token_ids=first.ids if len(texts) == 1 else [*chain.from_iterable(text.ids for text in texts)],
        parameters=payload.encode(texts, queries),
        image=first.image,
        image_tokens=first.image_tokens,
    )


def _rows_of_texts(pooled: Sequence[Tensor], prompts: Sequence[Sequence[TokenisedText]]) -> list[Tensor]:
    """Return the rows of each text from those of each prompt.

    Raises:
        RuntimeError: The engine answered with another number of rows.
    """
    import torch

    found: list[Tensor] = []
    for rows, texts in zip(pooled, prompts, strict=True):
        counts = [text.rows for text in texts]
        if len(rows) != sum(counts):
            raise RuntimeError(f"the engine answered {len(rows)} rows of {sum(counts)}")
        found += torch.split(rows, counts)
    return found


def _pooled(rows: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    import torch

    found: NDArray[np.float32] = token_pooling.pooled(torch.from_numpy(np.array(rows)), factor).numpy()
    return found


def _numpy(tensor: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.float().numpy()
    return found
