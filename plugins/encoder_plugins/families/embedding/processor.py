"""Requests for text embeddings: texts to token ids, and pooled vectors to responses.

Tokens are made exactly as sentence-transformers makes them; the engine only ever gets ids. It pools without normalising, so that each
request can choose; ``vectors`` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
import numpy as np

from encoder_plugins.backbones import token_marks
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.embedding import vectors
from encoder_plugins.families.embedding.format import EmbeddingCheckpoint
from encoder_plugins.families.embedding.request import (
    VECTOR_FIELDS,
    Answer,
    EmbeddingsRequest,
    EmbeddingsResponse,
    Request,
)
from encoder_plugins.families.embedding.tokenization import exact_tokenizer, token_problem
from encoder_plugins.families.retrieval import rerank, scoring
from encoder_plugins.families.retrieval.fields import side_of
from encoder_plugins.families.retrieval.prompts import Prompts
from encoder_plugins.families.retrieval.quantization import Ranges
from encoder_plugins.families.retrieval.scoring import ScoresAnswer, Scoring, ScoringLimits, Texts
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.inputs.text import check_texts, texts_of
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.packing import MOST_TOKENS, grouped, pack
from encoder_plugins.serving.processor import Engine, Prompt, Response, Schema, ServingContext

if TYPE_CHECKING:
    from torch import Tensor

# numbers that are normalised and written in a microsecond
NUMBERS_PER_MICROSECOND = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A checked request.

    Attributes:
        openai: Whether it came by OpenAI's route, and is answered in that shape.
        token_ids: Those of each text.
        dimensions: Numbers to keep of each vector; None keeps all.
        normalize: As in ``vectors.finish``.
        encoding: How the vectors are written.
        dtype: Their numbers.
        scoring: What is scored: the texts are the queries and then the documents. None where vectors are wanted.
        lora: The adapter; None for none.
    """

    openai: bool = False
    token_ids: Sequence[list[int]]
    dimensions: int | None = None
    normalize: bool | None = None
    encoding: encodings.Encoding = "float"
    dtype: encodings.EmbeddingDtype = "float32"
    scoring: Scoring | None = None
    lora: str | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.token_ids))


class EmbeddingProcessor:
    """Serves the embeddings of one checkpoint. A subclass names its format, and may take more in a request.

    Attributes:
        checkpoint: The plugin's format.
        schemas: Request and response types by the name that a route gives; the requests are subclasses of those here.
        vector_fields: Fields of ``/pooling`` that a request for scores does not have.
    """

    checkpoint: ClassVar[EmbeddingCheckpoint]

    schemas: ClassVar[Mapping[str, Schema]] = {
        "pooling": Schema(Envelope[Request], Answer, ScoresAnswer, binary=True),
        "openai": Schema(EmbeddingsRequest, EmbeddingsResponse),
        **rerank.SCHEMAS,
    }
    vector_fields: ClassVar[Sequence[str]] = VECTOR_FIELDS

    def __init__(self, context: ServingContext) -> None:
        from transformers import AutoTokenizer

        self.limits = limits.typed(ScoringLimits, context.limits)
        self._context = context
        self._config = self.checkpoint.read(context.model)
        self._tokenizer = exact_tokenizer(AutoTokenizer.from_pretrained(str(context.model)), self._config)
        self._prompts = Prompts(texts=self._config.prompts, default=self._config.default_prompt)
        self._ranges = Ranges(context.model, self._config.dimensions)
        packs = self.checkpoint.packs_texts(context.model)
        self._most_tokens = min(MOST_TOKENS, context.max_model_len) if packs else 1

    def parse(self, route: Route, body: bytes) -> Parsed:
        """Check the request, put the prompt before its texts, and tokenise them."""
        if route.schema == "openai":
            return self._parse_openai(body)
        found: Any = bodies.decode(body, self.schemas[route.schema].request)
        lora = bodies.adapter_of(found.model, found.lora, self._context.names, self._context.adapters)
        if route.schema == "rerank":
            scored = rerank.check_rerank(found, self.limits, most_tokens=self._longest())
        elif route.schema == "score":
            scored = rerank.check_score(found, self.limits)
        else:
            wanted = scoring.check(found.data, self.limits, others=self.vector_fields)
            if wanted is None:
                return self._parse_vectors(found.data, lora)
            scored = wanted
        token_ids = [*self._scored_tokens(scored.queries), *self._scored_tokens(scored.documents)]
        return Parsed(token_ids=token_ids, scoring=scored, lora=lora)

    def _longest(self) -> int | None:
        """Return the number of tokens after which texts are cut; None where they are not."""
        found: Any = self._tokenizer.truncation
        return None if found is None else int(found["max_length"])

    def _scored_tokens(self, found: Texts) -> Sequence[list[int]]:
        prompt = self._prompts.of_side(found.kind)
        return self._tokens([prompt + text for text in found.texts], found.path)

    def _parse_vectors(self, data: Any, lora: str | None) -> Parsed:
        texts = texts_of(data.text, data.texts, self.limits)
        self.check_dimensions(data.dimensions, "data.dimensions")
        self._ranges.check(data.embedding_dtype)
        whole = self.with_prompts(data, texts, path="data.")
        return Parsed(
            token_ids=self._tokens(whole, "data.text" if data.texts is None else "data.texts[{}]"),
            dimensions=data.dimensions,
            normalize=self.normalize(data.dimensions, data.normalize),
            encoding=data.encoding,
            dtype=data.embedding_dtype,
            lora=lora,
        )

    def _parse_openai(self, body: bytes) -> Parsed:
        data = bodies.decode(body, self.schemas["openai"].request)
        lora = bodies.adapter_of(data.model, None, self._context.names, self._context.adapters)
        single = isinstance(data.input, str)
        texts = [data.input] if isinstance(data.input, str) else data.input
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidRequest(
                    "token ids are not served, since clients make them with the tokenizer of another model; send texts"
                    " (LangChain's OpenAIEmbeddings does with check_embedding_ctx_length=False)",
                    param=f"input[{position}]",
                )
        checked = check_texts(cast("list[str]", texts), self.limits, path="input", single=single)
        self.check_dimensions(data.dimensions, "dimensions")
        whole = self.with_prompts(data, checked, path="")
        return Parsed(
            openai=True,
            token_ids=self._tokens(whole, "input" if single else "input[{}]"),
            dimensions=data.dimensions,
            normalize=self.normalize(data.dimensions, None),
            encoding=data.encoding_format or "float",
            lora=lora,
        )

    def with_prompts(self, request: Any, texts: Sequence[str], *, path: str) -> Sequence[str]:
        """Return the texts of a request with what is put before each.

        Args:
            request: The request, or the ``data`` in it.
            texts: Its texts.
            path: What precedes the names of the request's fields, e.g. ``data.``.

        Raises:
            InvalidRequest: It wants a prompt that the checkpoint does not have.
        """
        side = side_of(request.input_type, getattr(request, "is_query", None), path)
        prompt = self._prompts.choose(prompt_name=request.prompt_name, input_type=side, path=path)
        return [prompt + text for text in texts] if prompt else texts

    def check_dimensions(self, dimensions: int | None, param: str) -> None:
        """Refuse dimensions that the checkpoint's vectors cannot be cut to."""
        available = self._config.dimensions
        if dimensions is not None and dimensions > available:
            raise InvalidRequest(f"{dimensions} is more than the model's {available}", param=param)

    def normalize(self, dimensions: int | None, normalize: bool | None) -> bool | None:
        """Return what a request's ``normalize`` means to ``vectors.finish``: here, what it says."""
        del dimensions
        return normalize

    def _tokens(self, texts: Sequence[str], path: str) -> Sequence[list[int]]:
        """Return the token ids of each text; ``path`` is the field of the text at a position."""
        encoded = self._tokenizer.encode_batch_fast(list(texts))
        token_ids = [encoding.ids for encoding in encoded]
        for position, ids in enumerate(token_ids):
            if problem := token_problem(ids, self._context.max_model_len, self._config.padding_token):
                raise InvalidRequest(problem, param=path.format(position))
        return token_ids

    async def run(self, request: Parsed, engine: Engine) -> Response:
        """Answer with the embeddings in the order of the texts, or with the scores of the documents."""
        pooled = await engine.encode(self._shared_prompts(request.token_ids), lora=request.lora)
        size = sum(each.numel() for each in pooled) // NUMBERS_PER_MICROSECOND
        if request.scoring is not None:
            times = 1 if request.scoring.pairs else len(request.scoring.queries.texts)
            size = size * (1 + times) + rerank.microseconds(request.scoring)
            return await engine.compute(self._scores_response, request, pooled, size=size)
        return await engine.compute(self._response, request, pooled, size=size)

    def _shared_prompts(self, texts: Sequence[list[int]]) -> list[Prompt]:
        """Return the prompts of texts, given as token ids: one for each text, or shared ones."""
        return [_prompt(some) for some in grouped(texts, pack(list(map(len, texts)), self._most_tokens))]

    def _scores_response(self, request: Parsed, pooled: Sequence[Tensor]) -> Response:
        found = request.scoring
        assert found is not None
        finished = self._finished(request, _stacked(pooled, len(request.token_ids)))
        queries, documents = np.split(finished, [len(found.queries.texts)])
        scores = vectors.scores(queries, documents, self._config.similarity, pairs=found.pairs)
        tokens = request.prompt_tokens
        body = rerank.answer(found, scores, tokens=tokens, name=request.lora or self._context.names[0])
        return Response(body=body, prompt_tokens=tokens)

    def _response(self, request: Parsed, pooled: Sequence[Tensor]) -> Response:
        found = self._finished(request, _stacked(pooled, len(request.token_ids)))
        key = (request.dimensions, request.normalize)
        ranges = self._ranges.of(request.dtype, key, lambda raw: self._finished(request, raw))
        tokens = request.prompt_tokens
        if request.encoding == "bytes":
            content, headers = encodings.encode_bytes(found, request.dtype, ranges)
            return Response(body=content, media_type=encodings.BINARY, prompt_tokens=tokens, headers=headers)
        written = encodings.encoded(found, request.encoding, request.dtype, ranges)
        if request.openai:
            body = {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(written)
                ],
                "model": request.lora or self._context.names[0],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
            return Response(body=msgspec.json.encode(body), prompt_tokens=tokens)
        data = {
            "embeddings": written,
            "rows": [1] * len(found),
            "dimensions": found.shape[1],
            "encoding": request.encoding,
            "embedding_dtype": request.dtype,
            "usage": {"prompt_tokens": tokens},
        }
        return Response(body=msgspec.json.encode({"data": data}), prompt_tokens=tokens)

    def _finished(self, request: Parsed, pooled: vectors.Vectors) -> vectors.Vectors:
        return vectors.finish(
            pooled,
            checkpoint_normalizes=self._config.normalize,
            dimensions=self._config.truncate_dim if request.dimensions is None else request.dimensions,
            normalize=request.normalize,
        )


def _prompt(texts: Sequence[list[int]]) -> Prompt:
    """Return a prompt of texts, which the engine pools as the last module before Normalize does."""
    if len(texts) == 1:
        return Prompt(token_ids=texts[0], use_activation=False)
    marks = token_marks.encode(list(map(len, texts)))
    return Prompt(token_ids=[*chain.from_iterable(texts)], parameters=marks, use_activation=False)


def _stacked(pooled: Sequence[Tensor], texts: int) -> vectors.Vectors:
    """Return `[texts, width]`: each prompt's vector, or the vectors of its texts.

    Raises:
        RuntimeError: The engine answered with another number of vectors.
    """
    found: vectors.Vectors = np.concatenate([np.atleast_2d(each.float().numpy()) for each in pooled])
    if len(found) != texts:
        raise RuntimeError(f"the engine answered {len(found)} vectors of {texts}")
    return found
