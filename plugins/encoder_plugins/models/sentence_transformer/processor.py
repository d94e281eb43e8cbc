"""Requests for sentence embeddings: texts to token ids, and pooled vectors to responses.

Tokens are made exactly as sentence-transformers makes them; the engine only ever gets ids. It pools without normalising, so that each
request can choose; ``vectors`` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import msgspec
import numpy as np
from msgspec import Meta
from tokenizers import Tokenizer, normalizers

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.body import Data, DtypeField, EncodingField, Envelope
from encoder_plugins.inputs.text import TextLimits, check_texts, texts_of
from encoder_plugins.models.sentence_transformer import checkpoint, vectors
from encoder_plugins.models.sentence_transformer.checkpoint import Checkpoint
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Engine, Prompt, Response, Schema, ServingContext

if TYPE_CHECKING:
    from torch import Tensor

# transformers writes "no limit" as a number beyond this one
UNLIMITED = 10**20

# numbers that are normalised and written in a microsecond
NUMBERS_PER_MICROSECOND = 16

Dimensions = Annotated[int, Meta(ge=1)]


class Request(Data, frozen=True):
    """One text or several, and what their vectors should be like."""

    text: Annotated[str | None, Meta(description="One text. Either this or `texts`.")] = None
    texts: Annotated[list[str] | None, Meta(description="Several texts; the answer keeps their order.")] = None
    prompt_name: Annotated[
        str | None,
        Meta(
            description="A prompt of the checkpoint, put before each text; null takes the checkpoint's default prompt."
        ),
    ] = None
    dimensions: Annotated[
        Dimensions | None,
        Meta(description="Numbers to keep of each vector (Matryoshka embeddings); null keeps all."),
    ] = None
    normalize: Annotated[
        bool | None,
        Meta(
            description="true: vectors of length 1. false: without the checkpoint's Normalize module. null: as the"
            " checkpoint is configured."
        ),
    ] = None
    encoding: EncodingField = "float"
    dtype: DtypeField = "float32"


class Usage(msgspec.Struct, frozen=True):
    """What a request cost."""

    prompt_tokens: int


class Embeddings(msgspec.Struct, frozen=True):
    """The vectors of a request, in the order of its texts."""

    embeddings: list[list[float] | str]
    dimensions: int
    encoding: EncodingField
    usage: Usage


class Answer(msgspec.Struct, frozen=True):
    """The body of a response."""

    data: Embeddings


class EmbeddingsRequest(Data, frozen=True):
    """OpenAI's request for embeddings."""

    input: Annotated[
        str | list[str | int | list[int]], Meta(description="One text or a list of texts; token ids are refused.")
    ]
    model: Annotated[str | None, Meta(description="What the server calls the model.")] = None
    dimensions: Annotated[Dimensions | None, Meta(description="Numbers to keep of each vector; null keeps all.")] = None
    encoding_format: Annotated[
        Literal["float", "base64"],
        Meta(description="float: lists of numbers. base64: each vector's little-endian float32 numbers in base64."),
    ] = "float"
    user: Annotated[str | None, Meta(description="Accepted; without effect.")] = None


class Embedding(msgspec.Struct, frozen=True):
    """One vector of OpenAI's response."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class OpenAIUsage(msgspec.Struct, frozen=True):
    """What a request cost, in OpenAI's words."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(msgspec.Struct, frozen=True):
    """OpenAI's response."""

    data: list[Embedding]
    model: str
    usage: OpenAIUsage
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A checked request.

    Attributes:
        openai: Whether it came by OpenAI's route, and is answered in that shape.
        token_ids: Those of each text.
        dimensions: Numbers to keep of each vector; None keeps all.
        normalize: As in ``vectors.finish``.
        encoding: How the vectors are written.
        dtype: Their numbers, where they are written in binary.
        lora: The adapter; None for none.
    """

    openai: bool = False
    token_ids: Sequence[list[int]]
    dimensions: int | None
    normalize: bool | None = None
    encoding: Literal["float", "base64", "bytes"]
    dtype: encodings.Dtype = "float32"
    lora: str | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.token_ids))


class SentenceTransformerProcessor:
    """Serves the embeddings of one sentence-transformers checkpoint."""

    schemas: ClassVar[Mapping[str, Schema]] = {
        "pooling": Schema(Envelope[Request], Answer, binary=True),
        "openai": Schema(EmbeddingsRequest, EmbeddingsResponse),
    }

    def __init__(self, context: ServingContext) -> None:
        from transformers import AutoTokenizer

        self.limits = limits.typed(TextLimits, context.limits)
        self._context = context
        self._checkpoint = checkpoint.read(context.model)
        self._tokenizer = exact_tokenizer(AutoTokenizer.from_pretrained(str(context.model)), self._checkpoint)

    def parse(self, route: Route, body: bytes) -> Parsed:
        """Check the request, put the prompt before its texts, and tokenise them."""
        return self._parse_openai(body) if route.schema == "openai" else self._parse_pooling(body)

    def _parse_pooling(self, body: bytes) -> Parsed:
        envelope = bodies.decode(body, Envelope[Request])
        bodies.check_model(envelope.model, self._context.names)
        bodies.check_adapter(envelope.lora, self._context.adapters)
        data = envelope.data
        texts = texts_of(data.text, data.texts, self.limits)
        check_dimensions(data.dimensions, self._checkpoint.dimensions, "data.dimensions")
        prompt = prompt_of(data.prompt_name, self._checkpoint)
        return Parsed(
            token_ids=self._tokens(texts, prompt, "data.text" if data.texts is None else "data.texts[{}]"),
            dimensions=data.dimensions,
            normalize=data.normalize,
            encoding=data.encoding,
            dtype=data.dtype,
            lora=envelope.lora,
        )

    def _parse_openai(self, body: bytes) -> Parsed:
        data = bodies.decode(body, EmbeddingsRequest)
        bodies.check_model(data.model, self._context.names)
        single = isinstance(data.input, str)
        texts = [data.input] if isinstance(data.input, str) else data.input
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidRequest("token ids are not served; send texts", param=f"input[{position}]")
        checked = check_texts(cast("list[str]", texts), self.limits, path="input", single=single)
        check_dimensions(data.dimensions, self._checkpoint.dimensions, "dimensions")
        return Parsed(
            openai=True,
            token_ids=self._tokens(checked, prompt_of(None, self._checkpoint), "input" if single else "input[{}]"),
            dimensions=data.dimensions,
            encoding=data.encoding_format,
        )

    def _tokens(self, texts: Sequence[str], prompt: str, path: str) -> Sequence[list[int]]:
        """Return the token ids of each text; ``path`` is the field of the text at a position."""
        encoded = self._tokenizer.encode_batch_fast([prompt + text for text in texts] if prompt else list(texts))
        token_ids = [encoding.ids for encoding in encoded]
        for position, ids in enumerate(token_ids):
            if problem := token_problem(ids, self._context.max_model_len, self._checkpoint.padding_token):
                raise InvalidRequest(problem, param=path.format(position))
        return token_ids

    async def run(self, request: Parsed, engine: Engine) -> Response:
        """Answer with the embeddings in the order of the texts."""
        # the engine pools as the last module before Normalize does
        prompts = [Prompt(token_ids=ids, use_activation=False) for ids in request.token_ids]
        pooled = await engine.encode(prompts, lora=request.lora)
        size = sum(row.numel() for row in pooled) // NUMBERS_PER_MICROSECOND
        return await engine.compute(self._response, request, pooled, size=size)

    def _response(self, request: Parsed, pooled: Sequence[Tensor]) -> Response:
        found = vectors.finish(
            np.stack([row.float().numpy() for row in pooled]),  # [texts, width]
            checkpoint_normalizes=self._checkpoint.normalize,
            dimensions=request.dimensions,
            normalize=request.normalize,
        )
        tokens = request.prompt_tokens
        if request.encoding == "bytes":
            content, headers = encodings.encode_bytes(found, request.dtype)
            return Response(body=content, media_type=encodings.BINARY, prompt_tokens=tokens, headers=headers)
        written = encodings.encoded(found, request.encoding, request.dtype)
        if request.openai:
            body = {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(written)
                ],
                "model": self._context.names[0],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
            return Response(body=msgspec.json.encode(body), prompt_tokens=tokens)
        data = {
            "embeddings": written,
            "dimensions": found.shape[1],
            "encoding": request.encoding,
            "usage": {"prompt_tokens": tokens},
        }
        return Response(body=msgspec.json.encode({"data": data}), prompt_tokens=tokens)


def exact_tokenizer(tokenizer: Any, model: Checkpoint) -> Tokenizer:
    """Return a tokenizer of our own that does what the reference's Transformer module does with its.

    A copy, because transformers switches truncation and padding on its own; without those switches it can be used by
    several threads at once.

    Raises:
        ValueError: The checkpoint has a slow tokenizer.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ValueError(f"the checkpoint's tokenizer is a {type(tokenizer).__name__}; only fast tokenizers are served")
    own = Tokenizer.from_str(backend.to_str())
    own.no_padding()
    own.no_truncation()
    own.encode_special_tokens = tokenizer.split_special_tokens
    limit = token_limit(model, tokenizer.model_max_length)
    if limit is not None:
        own.enable_truncation(limit, direction=tokenizer.truncation_side)
    if model.lower_case and '"Lowercase"' not in own.to_str():
        inner = [] if own.normalizer is None else [own.normalizer]
        own.normalizer = normalizers.Sequence([normalizers.Lowercase(), *inner])
    return own


def token_limit(model: Checkpoint, tokenizer_limit: int) -> int | None:
    """Return the number of tokens of a text that the reference keeps; None for all."""
    if model.max_tokens is not None:
        return model.max_tokens
    limit = min(tokenizer_limit, model.max_positions or UNLIMITED)
    return None if limit >= UNLIMITED else limit


def token_problem(ids: Sequence[int], most: int, padding_token: int | None) -> str | None:
    """Return why the engine can't answer for these tokens as the reference does; None if it can."""
    if not 0 < len(ids) <= most:
        return f"the text has {len(ids)} tokens; this server takes 1 to {most}"
    if padding_token is not None and padding_token in ids:
        return "the text holds the model's padding token, which the reference does not count as text"
    return None


def check_dimensions(dimensions: int | None, available: int, param: str) -> None:
    """Refuse more dimensions than the checkpoint's vectors have."""
    if dimensions is not None and dimensions > available:
        raise InvalidRequest(f"{dimensions} is more than the model's {available}", param=param)


def prompt_of(name: str | None, model: Checkpoint) -> str:
    """Return the text of a prompt, or refuse its name."""
    try:
        return model.prompt(name)
    except KeyError:
        known = ", ".join(sorted(model.prompts))
        raise InvalidRequest(f"no prompt {str(name)[:200]!r}; there is: {known}", param="data.prompt_name") from None
