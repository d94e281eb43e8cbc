"""Deliberate mistakes in what conversion writes for LFM2: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from encoder_plugins.families.retrieval.config import KEY
from encoder_plugins.families.retrieval.conversion import PROJECTION_WEIGHTS
from encoder_plugins.families.retrieval.tests.conversion_mutants import dense, of_attended, of_pylate, replaced
from encoder_plugins.parity.tests.mutants import (
    Mutant,
    Tensors,
    config,
    filled,
    row_lost,
    section,
    swapped,
    weights,
)


def taps_reversed(tensors: Tensors) -> None:
    """Convolve as if the first tap were that of the token itself."""
    tensors["layers.0.conv.conv.weight"] = tensors["layers.0.conv.conv.weight"].flip(-1)


def gates_swapped(tensors: Tensors) -> None:
    """Exchange the gate before a convolution with the one behind it."""
    inner, outer, rows = tensors["layers.2.conv.in_proj.weight"].chunk(3)
    tensors["layers.2.conv.in_proj.weight"] = torch.cat([outer, inner, rows])


def of_encoder() -> Iterator[Mutant]:
    """Mistakes in the encoder."""
    yield Mutant("the taps of a convolution reversed", weights(taps_reversed))
    yield Mutant("the gates of a convolution swapped", weights(gates_swapped))
    yield Mutant(
        "the convolutions of two layers swapped", swapped("layers.0.conv.conv.weight", "layers.3.conv.conv.weight")
    )
    yield Mutant(
        "keys and values swapped", swapped("layers.1.self_attn.k_proj.weight", "layers.1.self_attn.v_proj.weight")
    )
    yield Mutant("the norm of queries dropped", filled("layers.1.self_attn.q_layernorm.weight", 1.0))
    yield Mutant(
        "gate and value swapped", swapped("layers.1.feed_forward.w1.weight", "layers.1.feed_forward.w3.weight")
    )
    yield Mutant("the final norm's weight dropped", filled("embedding_norm.weight", 1.0))
    yield Mutant("an embedding row lost", row_lost("embed_tokens.weight", 6))
    yield Mutant("another rotary base", config(rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}))


def of_native() -> Iterator[Mutant]:
    """Mistakes in a checkpoint with two Dense modules, a residual branch, and a token of its own for expansion."""
    yield Mutant("a residual branch missing", dense(0, residual=False))
    yield Mutant("another activation", dense(0, activation="ReLU"))
    yield Mutant("a bias dropped", filled("projection.0.linear.bias", 0.0, PROJECTION_WEIGHTS))
    yield Mutant("a bias of a convolution dropped", filled("layers.0.conv.conv.bias", 0.0))
    yield Mutant("a bias before a convolution dropped", filled("layers.0.conv.in_proj.bias", 0.0))
    yield Mutant("queries cut where expansion ends", section(KEY, query=replaced(most_tokens=20)))
    yield Mutant("expansion attended to", section(KEY, expansion=replaced(attend=True)))
    yield Mutant("expanded by the token that ends texts", section(KEY, expansion=replaced(token_id=3)))
    yield Mutant("skiplist not applied to queries", section(KEY, query=replaced(skips=False)))


def of(checkpoint: str) -> list[Mutant]:
    """Return the mistakes in the conversion of a tiny checkpoint."""
    if checkpoint == "pylate":
        return [*of_pylate(), *of_encoder()]
    if checkpoint == "pylate-attend":
        return list(of_attended())
    return list(of_native()) if checkpoint == "native-two-dense" else []
