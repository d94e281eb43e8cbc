"""Deliberate mistakes in what conversion writes for Nemotron ColEmbed: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from encoder_plugins.families.retrieval import config as retrieval
from encoder_plugins.families.retrieval.tests.conversion_mutants import replaced
from encoder_plugins.families.vision import config as visual
from encoder_plugins.families.vision.tests import qwen3_vl_mutants
from encoder_plugins.models.nemotron_colembed.tests import tiny
from encoder_plugins.parity.tests.mutants import Mutant, Tensors, section, weights


def last_norm_applied(folder: Path) -> None:
    """Multiply each row by the weight of the norm that is left out; what else a norm does is undone by the rows' length of 1."""

    def edit(tensors: Tensors) -> None:
        tensors["pooler.projection.layers.0.linear.weight"] = tensors["model.language_model.norm.weight"].diag()

    weights(edit)(folder)
    dense = {"inputs": tiny.WIDTH, "outputs": tiny.WIDTH, "bias": False, "activation": "Identity", "residual": False}
    section(retrieval.KEY, projection=lambda _: [dense])(folder)


def of() -> Iterator[Mutant]:
    """Return the mistakes."""
    yield from qwen3_vl_mutants.of("model.")
    # tokens that see those before them only, as in vLLM's own class for these checkpoints
    yield Mutant("causal attention", section("text_config", is_causal=lambda _: True))
    yield Mutant("the last norm applied", last_norm_applied)
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
