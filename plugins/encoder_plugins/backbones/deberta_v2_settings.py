"""The configuration and the checkpoint of DeBERTa v2 and v3, as plain data: prep and the engine read them by this code.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.activations import ACTIVATIONS
from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear, norm
from encoder_plugins.backbones.config_checks import ConfigFields

# what transformers' DebertaV2Config assumes
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "deberta-v2",
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_biased_input": True,
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """A DeBERTa configuration.

    Attributes:
        hidden_size: Width of a token.
        embedding_size: Width of a row of the vocabulary.
        intermediate_size: Width inside the feed-forward block.
        heads: Attention heads.
        layers: Encoder layers.
        vocabulary: Rows of the vocabulary.
        positions: Rows of the absolute position table; 0 for a model without one.
        token_types: Rows of the token type table, of which the first is used; 0 for a model without one.
        activation: Name of the feed-forward's activation.
        epsilon: Epsilon of all layer norms.
        relative: Whether scores have position terms at all.
        content_to_position: Whether queries are multiplied by the position keys.
        position_to_content: Whether keys are multiplied by the position queries.
        terms: Terms that the scale counts: those named, even if ``relative`` is off.
        share_keys: Whether the layer's own query and key weights project the relative embeddings.
        span: Half the rows of the relative table.
        buckets: Buckets of the logarithmic index; 0 for the linear one.
        max_distance: Where the logarithmic index ends.
        norm_relative: Whether the relative embeddings are layer-normed.
        biased_keys: Whether the projections to keys and to position keys have biases; those of v1 have none.
    """

    hidden_size: int
    embedding_size: int
    intermediate_size: int
    heads: int
    layers: int
    vocabulary: int
    positions: int
    token_types: int
    activation: str
    epsilon: float
    relative: bool
    content_to_position: bool
    position_to_content: bool
    terms: int
    share_keys: bool
    span: int
    buckets: int
    max_distance: int
    norm_relative: bool
    biased_keys: bool = True

    @property
    def max_tokens(self) -> int | None:
        """Tokens of the longest text that there are positions for; None where positions are relative only."""
        return self.positions or None

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read a ``DebertaV2Config``, or the object of its ``config.json``.

        Raises:
            UnsupportedConfig: A field has a value that is not supported, or that no model can have.
        """
        fields = ConfigFields(config, DEFAULTS)
        if fields.integer("conv_kernel_size", least=0, default=0):
            raise fields.refuse("conv_kernel_size", "the convolution beside the first layer is not implemented")
        head_size = fields.divided("hidden_size", "num_attention_heads")
        if fields.get("attention_head_size", head_size) != head_size:
            raise fields.refuse("attention_head_size", f"hidden_size / num_attention_heads is {head_size}")
        positions = fields.integer("max_position_embeddings")
        max_distance = fields.integer("max_relative_positions", least=-1)
        buckets = max(fields.integer("position_buckets", least=-1, default=-1), 0)
        relative = fields.flag("relative_attention")
        named = terms(fields)
        settings = cls(
            hidden_size=fields.integer("hidden_size"),
            embedding_size=fields.integer("embedding_size", default=fields.integer("hidden_size")),
            intermediate_size=fields.integer("intermediate_size"),
            heads=fields.integer("num_attention_heads"),
            layers=fields.integer("num_hidden_layers"),
            vocabulary=fields.integer("vocab_size"),
            positions=positions if fields.flag("position_biased_input") else 0,
            token_types=fields.integer("type_vocab_size", least=0),
            activation=fields.choice("hidden_act", ACTIVATIONS),
            epsilon=fields.epsilon("layer_norm_eps"),
            relative=relative,
            content_to_position=relative and "c2p" in named,
            position_to_content=relative and "p2c" in named,
            terms=1 + len(named),
            share_keys=fields.flag("share_att_key"),
            span=buckets or (positions if max_distance < 1 else max_distance),
            buckets=buckets,
            max_distance=positions if max_distance < 1 else max_distance,
            norm_relative="layer_norm" in _norms(fields),
        )
        if relative and buckets and not 2 <= buckets // 2 + 1 < settings.max_distance:
            raise fields.refuse(
                "position_buckets",
                f"at least 2, and max_relative_positions (here {settings.max_distance}) above position_buckets // 2 + 1",
            )
        return settings

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.heads


def terms(fields: ConfigFields) -> set[str]:
    """Return the terms of positions that a configuration names; raises UnsupportedConfig for one that is unknown."""
    named = fields.get("pos_att_type") or []
    words = named.lower().split("|") if isinstance(named, str) else named
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise fields.refuse("pos_att_type", "it must be a list of c2p and p2c")
    found = {word.strip() for word in words} - {""}
    if unknown := found - {"c2p", "p2c"}:
        raise fields.refuse("pos_att_type", f"{sorted(unknown)} is not one of c2p, p2c")
    return found


def _norms(fields: ConfigFields) -> list[str]:
    # transformers takes the value for a list of words separated by bars, and searches for one
    norms = [word.strip() for word in str(fields.get("norm_rel_ebd", "none")).lower().split("|")]
    if unknown := set(norms) - {"none", "layer_norm", ""}:
        raise fields.refuse("norm_rel_ebd", f"{sorted(unknown)} is not one of layer_norm, none")
    return norms


def layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``DebertaV2Model``; raises UnsupportedConfig as ``Settings.read`` does."""
    settings = Settings.read(config)
    return CheckpointLayout(shapes=_shapes(settings), slot=slot, ignored=ignored_embeddings(settings))


def ignored_embeddings(settings: Settings) -> dict[str, str]:
    """Return the tensors beside those of a model, with the reason why nothing reads them."""
    ignored = {"embeddings.position_ids": "a buffer that counts from 0, saved by transformers before 4.31"}
    if not settings.positions:
        ignored["embeddings.position_embeddings.weight"] = "used in pretraining only; position_biased_input is false"
    return ignored


def embedding_shapes(settings: Settings) -> dict[str, Shape]:
    """Return the tensors of a model outside its layers."""
    hidden = settings.hidden_size
    shapes: dict[str, Shape] = {
        "embeddings.word_embeddings.weight": (settings.vocabulary, settings.embedding_size),
        **norm("embeddings.LayerNorm", hidden),
    }
    if settings.positions:
        shapes["embeddings.position_embeddings.weight"] = (settings.positions, settings.embedding_size)
    if settings.token_types:
        shapes["embeddings.token_type_embeddings.weight"] = (settings.token_types, settings.embedding_size)
    if settings.embedding_size != hidden:
        shapes["embeddings.embed_proj.weight"] = (hidden, settings.embedding_size)
    if settings.relative:
        shapes["encoder.rel_embeddings.weight"] = (2 * settings.span, hidden)
    if settings.norm_relative:
        shapes |= norm("encoder.LayerNorm", hidden)
    return shapes


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, inner = settings.hidden_size, settings.intermediate_size
    shapes = embedding_shapes(settings)
    projections = ["query_proj", "key_proj", "value_proj"]
    if settings.relative and not settings.share_keys:
        projections += ["pos_key_proj"] * settings.content_to_position
        projections += ["pos_query_proj"] * settings.position_to_content
    for index in range(settings.layers):
        layer = f"encoder.layer.{index}"
        for name in projections:
            shapes |= linear(f"{layer}.attention.self.{name}", hidden, hidden)
        shapes |= linear(f"{layer}.attention.output.dense", hidden, hidden)
        shapes |= norm(f"{layer}.attention.output.LayerNorm", hidden)
        shapes |= linear(f"{layer}.intermediate.dense", inner, hidden)
        shapes |= linear(f"{layer}.output.dense", hidden, inner)
        shapes |= norm(f"{layer}.output.LayerNorm", hidden)
    return shapes


# modules below "encoder.layer.N."
_LAYER = {
    "attention.self.query_proj": ParameterSlot("attention.qkv_proj", "q"),
    "attention.self.key_proj": ParameterSlot("attention.qkv_proj", "k"),
    "attention.self.value_proj": ParameterSlot("attention.qkv_proj", "v"),
    "attention.self.pos_key_proj": ParameterSlot("attention.pos_key_proj"),
    "attention.self.pos_query_proj": ParameterSlot("attention.pos_query_proj"),
    "attention.output.dense": ParameterSlot("attention.dense"),
    "attention.output.LayerNorm": ParameterSlot("attention.LayerNorm"),
    "intermediate.dense": ParameterSlot("intermediate"),
    "output.dense": ParameterSlot("output"),
    "output.LayerNorm": ParameterSlot("LayerNorm"),
}


def slot(name: str) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``DebertaV2Model``."""
    if name.startswith("encoder.layer."):
        _, _, index, rest = name.split(".", 3)
        module, _, kind = rest.rpartition(".")
        target, part = _LAYER[module]
        return ParameterSlot(f"layers.{index}.{target}.{kind}", part)
    name = name.replace("encoder.rel_embeddings.", "relative.embeddings.")
    return ParameterSlot(name.replace("encoder.LayerNorm.", "relative.LayerNorm."))
