"""The plugin's processor in front of an engine whose answers a test makes up."""

from __future__ import annotations

from pathlib import Path

import torch

from encoder_plugins import catalog
from encoder_plugins.backbones import token_marks
from encoder_plugins.families.retrieval.processor import MultiVectorProcessor, Parsed
from encoder_plugins.serving import limits
from encoder_plugins.serving.packing import grouped
from encoder_plugins.serving.processor import Prompt, Response, ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance

PLUGIN = catalog.get("moderncolbert")
POOLING, RERANK, *_, SCORE = PLUGIN.routes


def served(model: Path, most_tokens: int = 64, **changed: int) -> MultiVectorProcessor:
    values = limits.defaults(PLUGIN) | changed
    return MultiVectorProcessor(
        ServingContext(
            model=model, max_model_len=most_tokens, names=("colbert",), limits=values, adapters=frozenset({"legal"})
        )
    )


def answered(of: MultiVectorProcessor, request: Parsed, *rounds: list[torch.Tensor]) -> tuple[Response, list[Round]]:
    """Return the answer where the engine pools each text to one of the given tensors, and what it was given."""
    running: Running = of.run(request, ENGINE)
    found, sent = advance(running), []
    for pooled in rounds:
        assert isinstance(found, Round)
        sent.append(found)
        texts = [len(texts_of(prompt)) for prompt in found.prompts]
        assert sum(texts) == len(pooled)
        found = advance(running, [torch.cat(own) for own in grouped(pooled, texts)])
    assert isinstance(found, Response)
    return found, sent


def texts_of(prompt: Prompt) -> list[int]:
    """Return the tokens of each text of a prompt."""
    marks = token_marks.decode(prompt.parameters)
    return [prompt.tokens] if marks is None else marks.tokens.tolist()
