"""What a checkpoint in sentence-transformers format decides about its vectors. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from encoder_plugins.prep.checkpoint_json import integer

# the token from behind which MPNet numbers positions
MPNET_PADDING = 1
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """What decides, beside weights and tokenizer, which vector a text gets.

    Attributes:
        dimensions: Numbers in a vector, before any truncation.
        pooling: How the rows of a text become a vector: ``mean``, ``cls`` or ``lasttoken``.
        normalize: Whether the last module makes vectors of length 1.
        max_tokens: Tokens kept of a text, special ones included; None leaves that to the tokenizer's own configuration.
        max_positions: Positions that the encoder has; None where it says nothing.
        padding_token: The token that a text must not hold, because the library counts positions without it,
            and vLLM with it; None where it makes no difference.
        lower_case: Whether text is lower-cased before anything else.
        prompts: Text to put before a text, by name.
        default_prompt: The name of the prompt for a request that names none; None for no prompt.
        truncate_dim: Numbers that the checkpoint keeps of a vector unless a request says otherwise; None for all.
        similarity: What a score is: the cosine or the dot product of two vectors, or their distance, negated.
    """

    dimensions: int
    pooling: str = "mean"
    normalize: bool
    max_tokens: int | None
    max_positions: int | None
    padding_token: int | None
    lower_case: bool
    prompts: dict[str, str]
    default_prompt: str | None
    truncate_dim: int | None = None
    similarity: Similarity = "cosine"


def positions_of_texts(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of the longest text that an encoder has positions for; None where its configuration does not say."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        return None
    padding = padding_token(config)
    return positions if padding is None else positions - padding - 1


def padding_token(config: Mapping[str, Any]) -> int | None:
    """Return the padding token of an encoder that numbers positions from behind it: RoBERTa and its kin."""
    if config.get("model_type") not in ("camembert", "mpnet", "roberta", "xlm-roberta"):
        return None
    if config["model_type"] == "mpnet":
        # whatever its configuration says
        return MPNET_PADDING
    return integer("config.json", dict(config), "pad_token_id", 1, least=0)
