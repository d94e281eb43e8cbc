"""Requests to retrievers of one vector per token: texts to rows, or documents to scores.

A request for scores has two rounds: the queries are encoded, then their rows travel with each document to the engine, which
answers with numbers. No rows of documents leave it, and nothing is kept between requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.retrieval import payload, request
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.request import (
    Request,
    RetrievalLimits,
    RowsAnswer,
    ScoresAnswer,
    Scoring,
    Texts,
)
from encoder_plugins.families.retrieval.tokens import TextTokenizer, TokenisedText
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.body import Envelope
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Engine, Prompt, Response, Schema, ServingContext

if TYPE_CHECKING:
    from torch import Tensor

# numbers that are written in a microsecond
NUMBERS_PER_MICROSECOND = 16
# of a row on its way to the engine
BYTES_PER_NUMBER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A checked request.

    Attributes:
        texts: Those whose rows are wanted, or the documents.
        queries: What the documents are scored by; None where rows are wanted.
        top_k: Documents to return for each query; None for all.
        encoding: How rows are written.
        dtype: Their numbers, where they are written in binary.
        lora: The adapter; None for none.
    """

    texts: Sequence[TokenisedText]
    queries: Sequence[TokenisedText] | None = None
    top_k: int | None = None
    encoding: encodings.Encoding = "float"
    dtype: encodings.Dtype = "float32"
    lora: str | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all texts and queries."""
        return sum(len(text.ids) for text in [*self.texts, *(self.queries or ())])


class MultiVectorProcessor:
    """Serves one checkpoint of one vector per token."""

    schemas: ClassVar[Mapping[str, Schema]] = {
        "pooling": Schema(Envelope[Request], RowsAnswer, ScoresAnswer, binary=True)
    }

    def __init__(self, context: ServingContext) -> None:
        self.limits = limits.typed(RetrievalLimits, context.limits)
        self._context = context
        self._config = read_served(context.model)
        self._tokenizer = TextTokenizer(context.model, self._config)

    def parse(self, route: Route, body: bytes) -> Parsed:
        """Check the request and tokenise its texts."""
        del route
        envelope = bodies.decode(body, Envelope[Request])
        bodies.check_model(envelope.model, self._context.names)
        bodies.check_adapter(envelope.lora, self._context.adapters)
        data = envelope.data
        found = request.check(data, self.limits)
        if isinstance(found, Texts):
            return Parsed(texts=self._tokenised(found), encoding=data.encoding, dtype=data.dtype, lora=envelope.lora)
        return self._parse_scoring(found, envelope.lora)

    def _parse_scoring(self, found: Scoring, lora: str | None) -> Parsed:
        queries, documents = self._tokenised(found.queries), self._tokenised(found.documents)
        rows = sum(query.rows for query in queries)
        size = rows * self._config.dimensions * BYTES_PER_NUMBER * len(documents)
        if size > self.limits.score_bytes:
            raise InvalidRequest(
                f"{rows} rows of queries times {len(documents)} documents are {size} bytes; the limit is"
                f" {self.limits.score_bytes} a request: send fewer documents or queries at once",
                param="data.documents",
            )
        return Parsed(texts=documents, queries=queries, top_k=found.top_k, lora=lora)

    def _tokenised(self, found: Texts) -> list[TokenisedText]:
        texts = self._tokenizer(found.texts, found.kind)
        for position, text in enumerate(texts):
            if len(text.ids) > self._context.max_model_len:
                raise InvalidRequest(
                    f"the text has {len(text.ids)} tokens; this server takes {self._context.max_model_len}",
                    param=found.path.format(position),
                )
            if not text.rows:
                raise InvalidRequest(
                    "the text has no rows: each of its tokens is in the checkpoint's skiplist",
                    param=found.path.format(position),
                )
        return texts

    async def run(self, request: Parsed, engine: Engine) -> Response:
        """Answer with rows in the order of the texts, or with the best documents of each query."""
        if request.queries is None:
            pooled = await engine.encode(_prompts(request.texts), lora=request.lora)
            size = sum(rows.numel() for rows in pooled) // NUMBERS_PER_MICROSECOND
            return await engine.compute(self._rows_response, request, pooled, size=size)
        encoded = await engine.encode(_prompts(request.queries), lora=request.lora)
        packed = payload.pack_queries([_numpy(rows) for rows in encoded])
        scored = await engine.encode(_prompts(request.texts, packed), lora=request.lora)
        return await engine.compute(_scores_response, request, scored, size=len(scored) * len(encoded))

    def _rows_response(self, request: Parsed, pooled: Sequence[Tensor]) -> Response:
        texts = [_numpy(rows) for rows in pooled]
        counts = [len(rows) for rows in texts]
        if request.encoding == "bytes":
            content, headers = encodings.encode_bytes(np.concatenate(texts), request.dtype)
            described = {**headers, "x-encoder-rows": ",".join(map(str, counts))}
            return Response(
                body=content, media_type=encodings.BINARY, prompt_tokens=request.prompt_tokens, headers=described
            )
        data = {
            "embeddings": encodings.encoded_matrices(texts, request.encoding, request.dtype),
            "rows": counts,
            "dimensions": self._config.dimensions,
            "encoding": request.encoding,
            "usage": {"prompt_tokens": request.prompt_tokens},
        }
        return Response(body=msgspec.json.encode({"data": data}), prompt_tokens=request.prompt_tokens)


def _prompts(texts: Sequence[TokenisedText], queries: payload.Queries | None = None) -> list[Prompt]:
    return [Prompt(token_ids=text.ids, parameters=payload.encode(text, queries)) for text in texts]


def _numpy(tensor: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.float().numpy()
    return found


def _scores_response(request: Parsed, scored: Sequence[Tensor]) -> Response:
    scores = np.stack([_numpy(each) for each in scored], axis=1)  # [queries, documents]
    results: list[dict[str, Any]] = []
    for each in scores:
        best = np.argsort(-each, kind="stable")[: request.top_k]
        results.append({"indices": best.tolist(), "scores": each[best].tolist()})
    data = {"results": results, "usage": {"prompt_tokens": request.prompt_tokens}}
    return Response(body=msgspec.json.encode({"data": data}), prompt_tokens=request.prompt_tokens)
