"""Texts to token ids exactly as sentence-transformers makes them, and which ids the engine cannot take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.retrieval.lower_case import lower_case

# transformers writes "no limit" as a number beyond this one
UNLIMITED = 10**20


def exact_tokenizer(tokenizer: Any, model: EmbeddingConfig) -> Tokenizer:
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
    if model.lower_case:
        lower_case(own)
    return own


def token_limit(model: EmbeddingConfig, tokenizer_limit: int) -> int | None:
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
