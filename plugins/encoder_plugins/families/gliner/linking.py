"""Requests for entities among labels or candidates that have an encoder of their own.

Labels go to the engine as token ids, with every request: see ``heads.label_vectors``. Everything else is the other token-level models':
``rerank``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner.config import LABELS_TOKENIZER
from encoder_plugins.families.gliner.label_runs import BiPromptBuilder
from encoder_plugins.families.gliner.processor import Parsed, read_tokenizer
from encoder_plugins.families.gliner.request import EntityRequest, GlinerLimits
from encoder_plugins.families.gliner.rerank import CandidatesProcessor
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import ServingContext


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkingLimits(GlinerLimits):
    """The limits of a request; ``families.gliner.limits`` describes them."""

    label_tokens: int


class LinkingProcessor(CandidatesProcessor):
    """Serves the entities of one token-level bi-encoder, and candidates with ids."""

    def __init__(self, context: ServingContext) -> None:
        super().__init__(context)
        self._label_tokens = limits.typed(LinkingLimits, context.limits).label_tokens

    def builder(self, folder: Path, tokenizer: Tokenizer, limit: int | None) -> BiPromptBuilder:
        """Return what makes the prompts of the model in ``folder``; its tokenizer cuts them off at ``limit``."""
        labels = self._config.label_encoder
        if labels is None:
            raise ValueError(f"{folder}: config.json has no encoder of labels")
        labels_tokenizer, _ = read_tokenizer(folder / LABELS_TOKENIZER)
        return BiPromptBuilder(tokenizer, labels_tokenizer, tokenizer_limit=limit, most=labels.max_tokens)

    def prepare(self, data: EntityRequest, lora: str | None = None) -> Parsed:
        """Check what the envelope holds, and make its prompts."""
        parsed = super().prepare(data, lora)
        different = {run for part in parsed.parts for run in part.item.runs}
        if (tokens := sum(map(len, different)) // 4) > self._label_tokens:
            given = ("labels", "labels_per_text", "candidates_per_text")
            field = next(name for name in given if getattr(data, name, None) is not None)
            raise InvalidRequest(
                f"the different labels are {tokens} tokens; the limit is {self._label_tokens}", param=f"data.{field}"
            )
        return parsed
