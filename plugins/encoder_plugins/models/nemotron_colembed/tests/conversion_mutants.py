"""Deliberate mistakes in what conversion writes for Nemotron ColEmbed: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator

from encoder_plugins.families.retrieval import config as retrieval
from encoder_plugins.families.retrieval.tests.conversion_mutants import replaced
from encoder_plugins.families.vision import config as visual
from encoder_plugins.families.vision.tests import qwen3_vl_mutants
from encoder_plugins.parity.tests.mutants import Mutant, section


def of() -> Iterator[Mutant]:
    """Return the mistakes."""
    yield from qwen3_vl_mutants.of("model.")
    # tokens that see those before them only, as in vLLM's own class for these checkpoints
    yield Mutant("causal attention", section("text_config", is_causal=lambda _: True))
    yield Mutant("queries without their end", section(visual.KEY, query_suffix=lambda ids: ids[:-1]))
    yield Mutant("passages without their end", section(visual.KEY, document_suffix=lambda ids: ids[:-1]))
    yield Mutant(
        "passages marked as queries",
        section(retrieval.KEY, document=replaced(prompt="<|im_start|>user\nQuery: query: ")),
    )
    yield Mutant("queries cut too late", section(retrieval.KEY, query=replaced(most_tokens=65)))
    yield Mutant("passages cut too late", section(visual.KEY, most_tokens=lambda most: most + 1))
    yield Mutant(
        "texts of images in a turn without the image's end",
        section(visual.KEY, captions=lambda each: each.replace("<|vision_end|>", "")),
    )
