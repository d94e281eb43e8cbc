"""Request and answer of sentence embeddings, and the way between text and token ids.

Tokens are made exactly as sentence-transformers makes them; the engine only ever gets ids. It pools without
normalising, so that each request can choose; ``vectors`` does the rest.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer, normalizers
from vllm import PoolingParams, PoolingRequestOutput
from vllm.config import VllmConfig
from vllm.inputs import PromptType, TokensPrompt
from vllm.renderers import BaseRenderer

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.models.sentence_transformer import checkpoint, vectors
from encoder_plugins.models.sentence_transformer.checkpoint import Checkpoint
from encoder_plugins.serving.http.body import Data
from encoder_plugins.serving.limits import Limits
from encoder_plugins.serving.processor import EncoderProcessor

# controls that no text needs, and that usually mean that something binary was sent by mistake
CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")

# transformers writes "no limit" as a number beyond this one
UNLIMITED = 10**20


class Request(Data):
    """The ``data`` of a request: one text or several, and what their vectors should look like."""

    text: str | None = None
    """One text. Either this or ``texts``."""
    texts: Annotated[list[str] | None, Field(fail_fast=True)] = None
    """Several texts; the answer keeps their order."""
    prompt_name: str | None = None
    """A prompt of the checkpoint to put before each text. null takes the checkpoint's default prompt, if it has one."""
    dimensions: Annotated[int | None, Field(ge=1)] = None
    """Numbers to keep of each vector, for checkpoints trained for that (Matryoshka). null keeps all."""
    normalize: bool | None = None
    """true: vectors of length 1. false: without the checkpoint's Normalize module. null: as the checkpoint says."""
    encoding: Literal["float", "base64"] = "float"
    """float: lists of numbers. base64: each vector's little-endian float32 bytes."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request: what the engine gets, and what the answer needs."""

    token_ids: list[list[int]]
    dimensions: int | None
    normalize: bool | None
    encoding: Literal["float", "base64"]


class SentenceTransformerProcessor(EncoderProcessor[Request, Prepared]):
    """Serves the embeddings of one sentence-transformers checkpoint."""

    data_type: ClassVar[type[Data]] = Request

    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> None:
        super().__init__(vllm_config, renderer)
        self.checkpoint = checkpoint.read(Path(vllm_config.model_config.model))
        tokenizer: Any = renderer.get_tokenizer()
        self.tokenizer = exact_tokenizer(tokenizer, self.checkpoint)
        self.max_tokens = vllm_config.model_config.max_model_len
        # vLLM's response class serialises numpy only with orjson; it writes float32 in half as many digits, too
        self._numpy_answers = importlib.util.find_spec("orjson") is not None

    def prepare(self, data: Request) -> Prepared:
        """Check the request, put the prompt before its texts, and tokenise them."""
        texts = texts_of(data, self.settings.limits)
        check_dimensions(data.dimensions, self.checkpoint.dimensions)
        prompt = prompt_of(data.prompt_name, self.checkpoint)
        encoded = self.tokenizer.encode_batch_fast([prompt + text for text in texts] if prompt else texts)
        token_ids = [encoding.ids for encoding in encoded]
        for position, ids in enumerate(token_ids):
            if problem := token_problem(ids, self.max_tokens, self.checkpoint.padding_token):
                raise InvalidRequest(problem, param=_param(data, position))
        return Prepared(token_ids, data.dimensions, data.normalize, data.encoding)

    def prompts(self, prepared: Prepared) -> Sequence[PromptType]:
        """Return one prompt for each text."""
        return [TokensPrompt(prompt_token_ids=ids) for ids in prepared.token_ids]

    def pooling_params(self, prepared: Prepared) -> PoolingParams:
        """Return pooled vectors as the last module before Normalize leaves them."""
        return PoolingParams(task="embed", use_activation=False)

    def answer(self, prepared: Prepared, outputs: Sequence[PoolingRequestOutput]) -> dict[str, Any]:
        """Return the embeddings in the order of the texts."""
        pooled = np.stack([output.outputs.data.float().numpy() for output in outputs])  # [texts, width]
        result = vectors.finish(
            pooled,
            checkpoint_normalizes=self.checkpoint.normalize,
            dimensions=prepared.dimensions,
            normalize=prepared.normalize,
        )
        embeddings: Any
        if prepared.encoding == "base64":
            embeddings = vectors.encode_base64(result)
        else:
            embeddings = list(result) if self._numpy_answers else result.tolist()
        return {
            "embeddings": embeddings,
            "dimensions": result.shape[1],
            "encoding": prepared.encoding,
            "usage": {"prompt_tokens": sum(map(len, prepared.token_ids))},
        }


def exact_tokenizer(tokenizer: Any, model: Checkpoint) -> Tokenizer:
    """Return a tokenizer of our own that does what the reference's Transformer module does with its.

    A copy, because vLLM and transformers switch truncation and padding on theirs; without those switches it can be
    used by several threads at once.
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
    """Return how many tokens of a text the reference keeps; None for all."""
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


def texts_of(data: Request, limits: Limits) -> list[str]:
    """Return the texts of a request that keeps the limits.

    Raises:
        InvalidRequest: It has none, or too many, or one of them is empty, too long, or not text.
    """
    if data.text is not None and data.texts is not None:
        raise InvalidRequest("text and texts are both there; send one of them", param="data.texts")
    texts = [data.text] if data.text is not None else data.texts
    if texts is None:
        raise InvalidRequest("neither text nor texts is there; send one of them", param="data.text")
    if not texts:
        raise InvalidRequest("the list is empty; it takes at least one text", param="data.texts")
    if len(texts) > limits.texts:
        raise InvalidRequest(f"{len(texts)} texts; the limit is {limits.texts}", param="data.texts")
    for position, text in enumerate(texts):
        if not text:
            raise InvalidRequest("the text is empty", param=_param(data, position))
        if len(text) > limits.characters_per_text:
            raise InvalidRequest(
                f"{len(text)} characters; the limit is {limits.characters_per_text} a text",
                param=_param(data, position),
            )
        if control := CONTROLS.search(text):
            raise InvalidRequest(
                f"the control character U+{ord(control[0]):04X} at position {control.start()}; of those, texts may hold"
                " tab, line feed and carriage return",
                param=_param(data, position),
            )
    if (total := sum(map(len, texts))) > limits.characters:
        raise InvalidRequest(
            f"{total} characters in all; the limit is {limits.characters} a request", param="data.texts"
        )
    return texts


def check_dimensions(dimensions: int | None, available: int) -> None:
    """Refuse more dimensions than the checkpoint's vectors have."""
    if dimensions is not None and dimensions > available:
        raise InvalidRequest(f"{dimensions} is more than the model's {available}", param="data.dimensions")


def prompt_of(name: str | None, model: Checkpoint) -> str:
    """Return the text of a prompt, or refuse its name."""
    try:
        return model.prompt(name)
    except KeyError:
        known = ", ".join(sorted(model.prompts))
        raise InvalidRequest(f"no prompt {str(name)[:200]!r}; there is: {known}", param="data.prompt_name") from None


def _param(data: Request, position: int) -> str:
    return "data.text" if data.text is not None else f"data.texts[{position}]"
