"""Deliberate mistakes in what conversion writes for ColQwen3: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator

from encoder_plugins.families.vision import config as visual
from encoder_plugins.families.vision.tests import qwen3_vl_mutants
from encoder_plugins.parity.tests.mutants import Mutant, filled, section


def of() -> Iterator[Mutant]:
    """Return the mistakes."""
    yield from qwen3_vl_mutants.of()
    # served by vLLM's own class for these checkpoints
    yield Mutant("the projection's bias dropped", filled("custom_text_proj.bias", 0.0))
    yield Mutant("the weight of the final norm dropped", filled("language_model.norm.weight", 1.0))
    yield Mutant("a longer query", section(visual.KEY, query_suffix=lambda ids: [*ids, ids[0]]))
