"""Deliberate mistakes in what conversion writes for BERT: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator

from encoder_plugins.families.retrieval.conversion import PROJECTION_WEIGHTS
from encoder_plugins.families.retrieval.tests.conversion_mutants import of_attended, of_one_dense
from encoder_plugins.models.colbert.tests.tiny import MARKERS
from encoder_plugins.parity.tests.mutants import Mutant, Tensors, config, filled, row_lost, swapped, weights

TOKEN_TYPES = "embeddings.token_type_embeddings.weight"


def types_swapped(tensors: Tensors) -> None:
    """Give every token the other type."""
    tensors[TOKEN_TYPES] = tensors[TOKEN_TYPES].flip(0)


def projection_reversed(tensors: Tensors) -> None:
    """Reverse the dimensions of rows, which no score depends on: it is seen in rows only."""
    tensors["projection.0.linear.weight"] = tensors["projection.0.linear.weight"].flip(0)


def of_encoder() -> Iterator[Mutant]:
    """Mistakes in the encoder, and in the projection that lies beside it."""
    attention = "encoder.layer.1.attention"
    yield Mutant("queries and keys swapped", swapped(f"{attention}.self.query.weight", f"{attention}.self.key.weight"))
    yield Mutant("a bias dropped", filled(f"{attention}.self.value.bias", 0.0))
    yield Mutant(
        "the norms of a layer swapped",
        swapped("encoder.layer.1.output.LayerNorm.weight", f"{attention}.output.LayerNorm.weight"),
    )
    yield Mutant(
        "two layers swapped", swapped("encoder.layer.0.output.dense.weight", "encoder.layer.2.output.dense.weight")
    )
    yield Mutant("every token of the other type", weights(types_swapped))
    yield Mutant("positions counted from 1", row_lost("embeddings.position_embeddings.weight", 0))
    yield Mutant("an embedding row lost", row_lost("embeddings.word_embeddings.weight", 8))
    yield Mutant("another activation", config(hidden_act="relu"))
    yield Mutant("the projection's rows reversed", weights(projection_reversed, PROJECTION_WEIGHTS))


def of(checkpoint: str) -> list[Mutant]:
    """Return the mistakes in the conversion of a tiny checkpoint."""
    if checkpoint == "stanford-attend":
        return list(of_attended())
    return [*of_one_dense(MARKERS), *of_encoder()] if checkpoint == "stanford" else []
