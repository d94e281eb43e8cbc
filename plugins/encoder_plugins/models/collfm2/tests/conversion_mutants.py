"""Deliberate mistakes in what conversion writes for ColLFM2: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from encoder_plugins.families.retrieval import config as retrieval
from encoder_plugins.families.retrieval.tests.conversion_mutants import replaced
from encoder_plugins.families.vision import config as visual
from encoder_plugins.families.vision.published import PREPROCESSOR
from encoder_plugins.parity.tests.mutants import Mutant, Tensors, filled, json_file, row_lost, section, swapped, weights

LAYER, MERGER = "model.language_model.layers.", "model.multi_modal_projector.linear_1.weight"
TOWER = "model.vision_tower.vision_model."


def merge_order(tensors: Tensors) -> None:
    """Merge four patches in another order."""
    first, second, third, fourth = tensors[MERGER].chunk(4, 1)
    tensors[MERGER] = torch.cat([first, third, second, fourth], 1)


def patches_transposed(tensors: Tensors) -> None:
    """Read the pixels of a patch column by column."""
    name = f"{TOWER}embeddings.patch_embedding.weight"
    side = int((tensors[name].shape[1] // 3) ** 0.5)
    tensors[name] = tensors[name].view(-1, side, side, 3).transpose(1, 2).reshape(tensors[name].shape)


def taps_reversed(tensors: Tensors) -> None:
    """Convolve from the text's end."""
    name = f"{LAYER}0.conv.conv.weight"
    tensors[name] = tensors[name].flip(-1)


def gates_swapped(tensors: Tensors) -> None:
    """Exchange the gates before and behind a convolution's input."""
    name = f"{LAYER}2.conv.in_proj.weight"
    inner, outer, rows = tensors[name].chunk(3)
    tensors[name] = torch.cat([rows, inner, outer])


def labels_swapped(tensors: Tensors) -> None:
    """Exchange the labels of two tiles."""
    from encoder_plugins.models.collfm2.tests.tiny import SPECIAL

    name = "model.language_model.embed_tokens.weight"
    first, second = (SPECIAL.index(f"<|img_row_{place}|>") for place in ("1_col_2", "2_col_1"))
    tensors[name][[first, second]] = tensors[name][[second, first]]


def of() -> Iterator[Mutant]:
    """Return the mistakes."""
    yield Mutant("the projection's bias dropped", filled("custom_text_proj.bias", 0.0))
    yield Mutant("the weight of the final norm dropped", filled("model.language_model.embedding_norm.weight", 1.0))
    yield Mutant("the norm of queries dropped", filled(f"{LAYER}1.self_attn.q_layernorm.weight", 1.0))
    yield Mutant("the norm of merged patches dropped", filled("model.multi_modal_projector.layer_norm.weight", 1.0))
    yield Mutant(
        "gate and value swapped", swapped(f"{LAYER}0.feed_forward.w1.weight", f"{LAYER}0.feed_forward.w3.weight")
    )
    yield Mutant(
        "keys and values swapped", swapped(f"{LAYER}1.self_attn.k_proj.weight", f"{LAYER}1.self_attn.v_proj.weight")
    )
    yield Mutant("an embedding row lost", row_lost("model.language_model.embed_tokens.weight", 3))
    yield Mutant("another merge order", weights(merge_order))
    yield Mutant("patches transposed", weights(patches_transposed))
    yield Mutant("convolutions reversed", weights(taps_reversed))
    yield Mutant("gates of a convolution swapped", weights(gates_swapped))
    yield Mutant("labels of tiles swapped", weights(labels_swapped))
    yield Mutant("other pixel bounds", json_file(PREPROCESSOR, lambda whole: whole.update(max_image_tokens=36)))
    yield Mutant("other tiles", json_file(PREPROCESSOR, lambda whole: whole.update(max_tiles=2)))
    yield Mutant("the image's prompt cut", section(visual.KEY, image_prompt=lambda ids: ids[:-1]))
    yield Mutant("a longer query", section(visual.KEY, query_suffix=lambda _: [4]))
    yield Mutant("queries with a prefix", section(retrieval.KEY, query=replaced(prompt="Query: ")))
    yield Mutant("rows of any length", section(retrieval.KEY, normalize=lambda _: False))
    yield Mutant("another rotary base", section("text_config", rope_parameters=replaced(rope_theta=1e3)))
