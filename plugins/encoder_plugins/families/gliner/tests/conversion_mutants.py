"""Deliberate mistakes in what conversion writes, for test_conversion_mutants.py: each must end in a refusal or in Failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from encoder_checkpoints.gliner import FURTHER
from encoder_plugins.families.gliner.config import KEY, LABELS_TOKENIZER
from encoder_plugins.parity.tests.mutants import (
    Mutant,
    Tensors,
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
    weights,
    without,
)

ENCODER = "token_rep_layer.bert_layer.model."
LABELS = "token_rep_layer.labels_encoder.model."
SPAN = "span_rep_layer.span_rep_layer."


def of_spans() -> Iterator[Mutant]:
    """Mistakes in the span head."""
    yield Mutant(
        "the markers of start and end swapped", swapped(f"{SPAN}project_start.0.weight", f"{SPAN}project_end.0.weight")
    )
    yield Mutant("the halves of the span's first matrix swapped", halves_swapped(f"{SPAN}out_project.0.weight", 1))
    yield Mutant("a bias of the label's layer dropped", filled("prompt_rep_layer.0.bias", 0.0))
    yield Mutant("a tensor of the head missing", without(f"{SPAN}out_project.3.weight"))
    yield Mutant("spans one word shorter", section(KEY, max_width=lambda number: number - 1))


def of_words() -> Iterator[Mutant]:
    """Mistakes in the token head."""
    yield Mutant("the halves of a word's scores swapped", halves_swapped("scorer.proj_token.weight", 0))
    yield Mutant("the halves of a label's scores swapped", halves_swapped("scorer.proj_label.weight", 0))
    yield Mutant("words and labels swapped", swapped("scorer.proj_token.weight", "scorer.proj_label.weight"))
    yield Mutant("the parts of the inner layer swapped", weights(parts_rotated))
    yield Mutant("a bias of the inner layer dropped", filled("scorer.out_mlp.0.bias", 0.0))
    yield Mutant("start and end swapped", weights(start_and_end_swapped))
    yield Mutant("a tensor of the head missing", without("scorer.out_mlp.3.bias"))
    yield Mutant("words taken for spans", section(KEY, head=lambda head: "span"))


def of_proposed_spans() -> Iterator[Mutant]:
    """Mistakes in the layers of spans that words propose."""
    for number, layer in ((0, "first"), (3, "second")):
        yield Mutant(
            f"the {layer} markers of start and end swapped",
            swapped(f"{SPAN}project_start.{number}.weight", f"{SPAN}project_end.{number}.weight"),
        )
        yield Mutant(
            f"the {layer} biases of start and end swapped",
            swapped(f"{SPAN}project_start.{number}.bias", f"{SPAN}project_end.{number}.bias"),
        )
        yield Mutant(f"a bias of the span's {layer} layer dropped", filled(f"{SPAN}out_project.{number}.bias", 0.0))
    yield Mutant("the halves of the span's first matrix swapped", halves_swapped(f"{SPAN}out_project.0.weight", 1))
    yield Mutant("a tensor of spans missing", without(f"{SPAN}out_project.3.weight"))
    yield Mutant("spans scored by their words", section(KEY, represent_spans=lambda represents: False))


def parts_rotated(tensors: Tensors) -> None:
    """What is for words, labels and products of both in another order."""
    tensors["scorer.out_mlp.0.weight"] = torch.cat(
        list(reversed(tensors["scorer.out_mlp.0.weight"].chunk(3, dim=1))), 1
    )


def start_and_end_swapped(tensors: Tensors) -> None:
    """The first two of three scores exchanged."""
    for part in ("weight", "bias"):
        name = f"scorer.out_mlp.3.{part}"
        tensors[name] = tensors[name][[1, 0, 2]]


def of_labels() -> Iterator[Mutant]:
    """Mistakes in the encoder of labels, which is DeBERTa's."""
    layer = f"{LABELS}encoder.layer.0.attention.self."
    yield Mutant(
        "queries and keys of labels swapped", weights(lambda tensors: parts_of_heads(tensors, layer, 2, (1, 0, 2)))
    )
    yield Mutant(
        "position keys and queries of labels swapped", swapped(f"{layer}pos_proj.weight", f"{layer}pos_q_proj.weight")
    )
    yield Mutant(
        "labels lower-cased", tokenizer(lower_cased, f"{LABELS_TOKENIZER}/tokenizer.json"), dtypes=("float32",)
    )


def of_bert_labels() -> Iterator[Mutant]:
    """Mistakes in the encoder of labels, which is BERT's."""
    layer = f"{LABELS}encoder.layer.0."
    yield Mutant(
        "queries and keys of labels swapped",
        swapped(f"{layer}attention.self.query.weight", f"{layer}attention.self.key.weight"),
    )
    yield Mutant("an attention's output of labels transposed", transposed(f"{layer}attention.output.dense.weight"))
    yield Mutant("the first positions of labels lost", row_lost(f"{LABELS}embeddings.position_embeddings.weight", 1))
    yield Mutant("the token type of labels lost", row_lost(f"{LABELS}embeddings.token_type_embeddings.weight", 0))
    yield Mutant("labels not lower-cased", tokenizer(cased, f"{LABELS_TOKENIZER}/tokenizer.json"))


def cased(whole: dict[str, Any]) -> None:
    """Capitals, which BERT's uncased pieces do not have."""
    whole["normalizer"]["lowercase"] = False


def of_bi_encoders() -> Iterator[Mutant]:
    """Mistakes in what bi-encoders have in common, and with other models."""
    labels = f"{LABELS_TOKENIZER}/tokenizer.json"
    yield Mutant("a bias of the labels' projection dropped", filled("token_rep_layer.labels_projection.bias", 0.0))
    yield Mutant("an embedding row of labels lost", row_lost(f"{LABELS}embeddings.word_embeddings.weight", 3))
    yield Mutant(
        "special tokens around a label lost", tokenizer(lambda whole: whole.update(post_processor=None), labels)
    )
    yield Mutant("the epsilon of the labels' norms wrong", section(KEY, label_encoder=coarse))
    yield Mutant("words of a text cut one too early", section(KEY, max_words=lambda number: number - 1))
    yield Mutant("text lower-cased by the tokenizer", tokenizer(lower_cased))
    yield Mutant("special tokens around a text lost", tokenizer(lambda whole: whole.update(post_processor=None)))


def parts_of_heads(tensors: Tensors, layer: str, heads: int, order: tuple[int, int, int]) -> None:
    """Queries, keys and values of each head in another order."""
    name = f"{layer}in_proj.weight"
    rows = tensors[name]
    tensors[name] = rows.view(heads, 3, -1, rows.shape[1])[:, list(order)].reshape(rows.shape)


def not_by_head(tensors: Tensors) -> None:
    """All queries first, then all keys, as DeBERTa v2 has them."""
    name = f"{ENCODER}encoder.layer.0.attention.self.in_proj.weight"
    rows = tensors[name]
    tensors[name] = rows.view(3, 3, -1, rows.shape[1]).transpose(0, 1).reshape(rows.shape)


def coarse(label_encoder: dict[str, Any]) -> dict[str, Any]:
    """Another epsilon."""
    return {**label_encoder, "config": {**label_encoder["config"], "layer_norm_eps": 0.3}}


def common() -> Iterator[Mutant]:
    """Mistakes in the layers of words and in the tokenizer, which all encoders and heads share."""
    yield Mutant(
        "the directions of the LSTM swapped", swapped("rnn.lstm.weight_hh_l0", "rnn.lstm.weight_hh_l0_reverse")
    )
    yield Mutant("the class token's id off by one", section(KEY, class_token_id=lambda number: number + 1))
    yield Mutant("a label read behind its class token", section(KEY, embed_class_token=lambda value: not value))
    yield Mutant("words of a text cut one too early", section(KEY, max_words=lambda number: number - 1))
    yield Mutant("text lower-cased by the tokenizer", tokenizer(lower_cased))
    yield Mutant("special tokens around a prompt lost", tokenizer(lambda whole: whole.update(post_processor=None)))


def of_encoder(plugin: str) -> Iterator[Mutant]:
    """Mistakes in the encoder of a family of checkpoints."""
    if plugin in {"deberta_gliner", "gliner_bi_deberta"}:
        layer = f"{ENCODER}encoder.layer.0."
        yield Mutant(
            "queries and keys swapped",
            swapped(f"{layer}attention.self.query_proj.weight", f"{layer}attention.self.key_proj.weight"),
        )
        yield Mutant("an attention's output transposed", transposed(f"{layer}attention.output.dense.weight"))
        yield Mutant("a bias of attention dropped", filled(f"{layer}attention.output.dense.bias", 0.0))
        yield Mutant("a norm's weight dropped", filled(f"{ENCODER}encoder.LayerNorm.weight", 1.0))
        yield Mutant("an embedding row lost", row_lost(f"{ENCODER}embeddings.word_embeddings.weight", 3))
        yield Mutant("the epsilon of norms wrong", config(layer_norm_eps=0.3))
        yield Mutant("one term of positions lost", config(pos_att_type=["c2p"]))
        yield Mutant("half of the buckets", config(position_buckets=16))
    elif plugin == "deberta_gliner_linker":
        layer = f"{ENCODER}encoder.layer.0."
        own = f"{layer}attention.self."
        yield Mutant("queries and values swapped", weights(lambda tensors: parts_of_heads(tensors, own, 3, (2, 1, 0))))
        yield Mutant("queries, keys and values not by head", weights(not_by_head))
        yield Mutant("the biases of queries and values swapped", swapped(f"{own}q_bias", f"{own}v_bias"))
        yield Mutant("a bias of position queries dropped", filled(f"{own}pos_q_proj.bias", 0.0), dtypes=("float32",))
        yield Mutant("the distances mirrored", weights(distances_mirrored))
        yield Mutant("an attention's output transposed", transposed(f"{layer}attention.output.dense.weight"))
        yield Mutant("a norm's weight dropped", filled(f"{layer}output.LayerNorm.weight", 1.0))
        yield Mutant("an embedding row lost", row_lost(f"{ENCODER}embeddings.word_embeddings.weight", 3))
        yield Mutant("the epsilon of norms wrong", config(layer_norm_eps=0.3))
        yield Mutant("one term of positions lost", config(pos_att_type=["c2p"]))
    elif plugin in {"mmbert_gliner", "modernbert_gliner_rerank", "gliner_bi_modernbert"}:
        layer = f"{ENCODER}layers.1."
        yield Mutant("queries and keys swapped", thirds_swapped(f"{layer}attn.Wqkv.weight"))
        yield Mutant("gate and value swapped", halves_swapped(f"{layer}mlp.Wi.weight", 0))
        yield Mutant("an attention's output transposed", transposed(f"{layer}attn.Wo.weight"))
        yield Mutant("a norm's weight dropped", filled(f"{ENCODER}final_norm.weight", 1.0))
        yield Mutant("an embedding row lost", row_lost(f"{ENCODER}embeddings.tok_embeddings.weight", 3))
        yield Mutant("the epsilon of norms wrong", config(norm_eps=0.3))
        yield Mutant("the window of local layers halved", config(local_attention=16))
        yield Mutant(
            "the layers' types in another order",
            config(layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        )
    elif plugin == "mt5_gliner":
        block = f"{ENCODER}encoder.block.0.layer."
        yield Mutant(
            "queries and keys swapped", swapped(f"{block}0.SelfAttention.q.weight", f"{block}0.SelfAttention.k.weight")
        )
        yield Mutant(
            "gate and value swapped",
            swapped(f"{block}1.DenseReluDense.wi_0.weight", f"{block}1.DenseReluDense.wi_1.weight"),
        )
        yield Mutant("the bias of distances mirrored", weights(mirrored))
        yield Mutant("a norm's weight dropped", filled(f"{ENCODER}encoder.final_layer_norm.weight", 1.0))
        yield Mutant("an embedding row lost", row_lost(f"{ENCODER}shared.weight", 3))
        yield Mutant("the epsilon of norms wrong", config(layer_norm_epsilon=0.3))
        yield Mutant("the farthest distance wrong", config(relative_attention_max_distance=24))
    else:
        raise ValueError(f"no mistakes are known for {plugin}: a converting plugin needs at least ten")


def distances_mirrored(tensors: Tensors) -> None:
    """Distances to the left and to the right exchanged."""
    name = f"{ENCODER}encoder.rel_embeddings.weight"
    tensors[name] = tensors[name].flip(0)


def mirrored(tensors: Tensors) -> None:
    """Distances to the left and to the right exchanged."""
    name = f"{ENCODER}encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    tensors[name] = torch.cat(list(reversed(tensors[name].chunk(2))))


def of(plugin: str) -> list[Mutant]:
    """Return the mistakes of the conversion of a family's checkpoints."""
    if plugin == "deberta_gliner_linker":
        return [*of_words(), *of_labels(), *of_bi_encoders(), *of_encoder(plugin)]
    if plugin in {"gliner_linker_spans", "gliner_rerank_spans"}:
        # encoders and labels are those of the families without
        return [*of_words(), *of_proposed_spans()]
    if plugin in FURTHER:
        return [*of_spans(), *of_bert_labels(), *of_bi_encoders(), *of_encoder(plugin)]
    of_head = of_words() if plugin == "modernbert_gliner_rerank" else of_spans()
    return [*of_head, *common(), *of_encoder(plugin)]
