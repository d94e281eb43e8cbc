"""Deliberate mistakes in what conversion writes, for test_gliner2_engine.py: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator

from encoder_plugins.families.gliner2.config import KEY
from encoder_plugins.parity.tests.mutants import (
    Mutant,
    config,
    filled,
    halves_swapped,
    lower_cased,
    row_lost,
    section,
    swapped,
    thirds_swapped,
    tokenizer,
    transposed,
    without,
)

SPAN = "span_rep.span_rep_layer."
LAYER = "encoder.encoder.layer.0."
# scores move by 0.02 and 0.03 at most: less than by rounding to bfloat16
LARGE_ENOUGH = ("float32",)


def of(counting_layer: str) -> Iterator[Mutant]:
    """Mistakes in a counting layer, and with ``count_lstm_v2`` those in the rest of the head, in the encoder and in the tokenizer."""
    yield Mutant("the gates of the recurrence in another order", thirds_swapped("count_embed.gru.weight_hh_l0"))
    yield Mutant("the first step's row lost", row_lost("count_embed.pos_embedding.weight", 0))
    if counting_layer == "count_lstm":
        yield Mutant("states and fields swapped", halves_swapped("count_embed.projector.0.weight", 1))
        yield Mutant("the biases of queries dropped", filled("count_embed.projector.2.bias", 0.0))
    elif counting_layer == "count_lstm_moe":
        yield Mutant("experts with other experts' inner layers", halves_swapped("count_embed.w1", 0))
        yield Mutant("the routes of experts swapped", halves_swapped("count_embed.router.2.weight", 0))
    else:
        yield from _others()


def _others() -> Iterator[Mutant]:
    yield Mutant(
        "queries and keys of fields swapped",
        thirds_swapped("count_embed.transformer.transformer.layers.0.self_attn.in_proj_weight"),
        LARGE_ENOUGH,
    )
    yield Mutant(
        "the markers of start and end swapped", swapped(f"{SPAN}project_start.0.weight", f"{SPAN}project_end.0.weight")
    )
    yield Mutant("the halves of the span's first matrix swapped", halves_swapped(f"{SPAN}out_project.0.weight", 1))
    yield Mutant("a bias of the classifier dropped", filled("classifier.0.bias", 0.0))
    yield Mutant("a bias of the counts dropped", filled("count_pred.2.bias", 0.0))
    yield Mutant("spans one word shorter", section(KEY, max_width=lambda number: number - 1))
    yield Mutant("text lower-cased by the tokenizer", tokenizer(lower_cased), LARGE_ENOUGH)
    yield Mutant(
        "queries and keys swapped",
        swapped(f"{LAYER}attention.self.query_proj.weight", f"{LAYER}attention.self.key_proj.weight"),
    )
    yield Mutant("an attention's output transposed", transposed(f"{LAYER}attention.output.dense.weight"))
    yield Mutant("a norm's weight dropped", filled("encoder.encoder.LayerNorm.weight", 1.0))
    yield Mutant("the epsilon of norms wrong", config(layer_norm_eps=0.3))
    # last: an engine that refused a model has to be started again
    yield Mutant("a tensor of the head missing", without(f"{SPAN}out_project.3.weight"))
    yield Mutant("another counting layer", section(KEY, counting_layer=lambda _: "count_lstm"))
    yield Mutant("half of the buckets", config(position_buckets=16))
