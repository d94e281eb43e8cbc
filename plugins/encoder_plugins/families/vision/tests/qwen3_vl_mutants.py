"""Deliberate mistakes in what conversions write for every checkpoint on Qwen3-VL."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from encoder_plugins.families.retrieval import config as retrieval
from encoder_plugins.families.retrieval.tests.conversion_mutants import replaced
from encoder_plugins.families.vision import config as visual
from encoder_plugins.parity.tests.mutants import (
    Mutant,
    Tensors,
    filled,
    row_lost,
    section,
    swapped,
    thirds_swapped,
    weights,
)


def mergers_rotated(tensors: Tensors) -> None:
    """Give each level of the language model the vision rows of another."""
    names = sorted(name for name in tensors if "deepstack_merger_list.0." in name)
    for name in names:
        levels = [name.replace("list.0.", f"list.{level}.") for level in range(3)]
        first, second, third = (tensors[level] for level in levels)
        for level, value in zip(levels, (second, third, first), strict=True):
            tensors[level] = value.clone()


def patches_transposed(tensors: Tensors) -> None:
    """Read the pixels of a patch column by column."""
    (name,) = (each for each in tensors if each.endswith("visual.patch_embed.proj.weight"))
    tensors[name] = tensors[name].transpose(-1, -2).clone()


def merge_order(tensors: Tensors) -> None:
    """Merge four patches in another order."""
    (name,) = (each for each in tensors if each.endswith("visual.merger.linear_fc1.weight"))
    first, second, third, fourth = tensors[name].chunk(4, 1)
    tensors[name] = torch.cat([first, third, second, fourth], 1)


def of(prefix: str = "") -> Iterator[Mutant]:
    """Return the mistakes.

    Args:
        prefix: What precedes the names of tensors.
    """
    layer = f"{prefix}language_model.layers.1."
    yield Mutant("the norm of queries dropped", filled(f"{layer}self_attn.q_norm.weight", 1.0))
    yield Mutant("gate and value swapped", swapped(f"{layer}mlp.gate_proj.weight", f"{layer}mlp.up_proj.weight"))
    yield Mutant(
        "keys and values swapped", swapped(f"{layer}self_attn.k_proj.weight", f"{layer}self_attn.v_proj.weight")
    )
    yield Mutant("an embedding row lost", row_lost(f"{prefix}language_model.embed_tokens.weight", 6))
    yield Mutant(
        "queries and keys of the vision encoder swapped", thirds_swapped(f"{prefix}visual.blocks.0.attn.qkv.weight")
    )
    yield Mutant("vision levels mixed up", weights(mergers_rotated))
    yield Mutant("patches transposed", weights(patches_transposed))
    yield Mutant("another merge order", weights(merge_order))
    yield Mutant("other pixel bounds", section(visual.KEY, bounds=replaced(most=200_000)))
    yield Mutant("the image's prompt cut", section(visual.KEY, image_prompt=lambda ids: ids[:-1]))
    yield Mutant("queries without their prefix", section(retrieval.KEY, query=replaced(prompt="")))
    yield Mutant("rows of any length", section(retrieval.KEY, normalize=lambda _: False))
    yield Mutant("another rotary base", section("text_config", rope_parameters=replaced(rope_theta=1e4)))
    yield Mutant(
        "fewer numbers for rows and columns",
        section("text_config", rope_parameters=replaced(mrope_section=[14, 1, 1])),
    )
    yield Mutant("another vision level", section("vision_config", deepstack_visual_indexes=lambda _: [0, 1, 3]))
