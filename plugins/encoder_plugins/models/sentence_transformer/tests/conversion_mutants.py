"""Deliberate mistakes in what the conversion of an XLM-RoBERTa writes: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from encoder_plugins.families.embedding.conversion import DENSE_FILE
from encoder_plugins.families.embedding.served import DENSE_KEY
from encoder_plugins.parity.tests.mutants import (
    Mutant,
    Tensors,
    config,
    filled,
    halves_swapped,
    row_lost,
    swapped,
    transposed,
    weights,
    without,
)


def reverse(name: str, tensors: Tensors) -> None:
    """Reverse the rows of a matrix."""
    tensors[name] = tensors[name].flip(0)


def all_mutants() -> Iterator[Mutant]:
    """Yield every mistake."""
    attention = "encoder.layer.1.attention"
    yield Mutant("queries and keys swapped", swapped(f"{attention}.self.query.weight", f"{attention}.self.key.weight"))
    yield Mutant("a matrix transposed", transposed(f"{attention}.self.value.weight"))
    yield Mutant("a bias dropped", filled(f"{attention}.self.value.bias", 0.0))
    yield Mutant(
        "the norms of a layer swapped",
        swapped("encoder.layer.1.output.LayerNorm.weight", f"{attention}.output.LayerNorm.weight"),
    )
    yield Mutant(
        "two layers swapped",
        swapped("encoder.layer.0.output.dense.weight", "encoder.layer.1.output.dense.weight"),
    )
    yield Mutant("halves of a matrix swapped", halves_swapped("encoder.layer.0.intermediate.dense.weight", 0))
    yield Mutant("every token of another type", weights(partial(reverse, "embeddings.token_type_embeddings.weight")))
    yield Mutant("positions counted from 1", row_lost("embeddings.position_embeddings.weight", 0))
    yield Mutant("an embedding row lost", row_lost("embeddings.word_embeddings.weight", 300))
    yield Mutant("another activation", config(hidden_act="relu"))
    yield Mutant("the epsilon of norms wrong", config(layer_norm_eps=0.3))
    yield Mutant("a Dense module reversed", weights(partial(reverse, "dense.0.linear.weight"), DENSE_FILE))
    # these are refused when the engine loads them: each needs another engine
    yield Mutant("the Dense module forgotten", config(**{DENSE_KEY: []}))
    yield Mutant("a tensor missing", without(f"{attention}.self.value.bias"))
