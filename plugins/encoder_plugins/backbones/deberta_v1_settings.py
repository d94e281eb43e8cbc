"""The configuration and the checkpoint of DeBERTa v1, as plain data: prep and the engine read them by this code.

The settings are those of v2, of which v1 is a special case, but for one thing: keys and position keys have no bias. The checkpoint is
another one: one matrix for queries, keys and values, in which each head has its rows together. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones import deberta_v2_settings
from encoder_plugins.backbones.activations import ACTIVATIONS
from encoder_plugins.backbones.checkpoint_layout import ByHead, CheckpointLayout, ParameterSlot, Shape, linear, norm
from encoder_plugins.backbones.config_checks import ConfigFields

# what transformers' DebertaConfig assumes
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "deberta",
        "vocab_size": 50265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_biased_input": True,
    }
)


class Settings(deberta_v2_settings.Settings):
    """A DeBERTa v1 configuration, in the terms of v2's."""

    __slots__ = ()

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read a ``DebertaConfig``, or the object of its ``config.json``.

        Raises:
            UnsupportedConfig: A field has a value that is not supported, or that no model can have.
        """
        fields = ConfigFields(config, DEFAULTS)
        if fields.flag("talking_head"):
            raise fields.refuse("talking_head", "the projections between heads are not implemented")
        fields.divided("hidden_size", "num_attention_heads")
        positions = fields.integer("max_position_embeddings")
        distances = fields.integer("max_relative_positions", least=-1)
        relative = fields.flag("relative_attention")
        terms = deberta_v2_settings.terms(fields)
        return cls(
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
            content_to_position=relative and "c2p" in terms,
            position_to_content=relative and "p2c" in terms,
            terms=1 + len(terms),
            share_keys=False,
            span=positions if distances < 1 else distances,
            buckets=0,
            max_distance=positions if distances < 1 else distances,
            norm_relative=False,
            biased_keys=False,
        )


def layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``DebertaModel``; raises UnsupportedConfig as ``Settings.read`` does."""
    settings = Settings.read(config)
    # a checkpoint has no bias of keys
    keys = [ParameterSlot(f"layers.{index}.{_BIAS}", "k") for index in range(settings.layers)]
    return CheckpointLayout(
        shapes=_shapes(settings),
        slot=lambda name: slot(name, settings.heads),
        ignored=deberta_v2_settings.ignored_embeddings(settings),
        zeros=dict.fromkeys(keys, (settings.hidden_size,)),
    )


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, inner = settings.hidden_size, settings.intermediate_size
    shapes = deberta_v2_settings.embedding_shapes(settings)
    for index in range(settings.layers):
        layer = f"encoder.layer.{index}"
        attention = f"{layer}.attention.self"
        shapes[f"{attention}.q_bias"] = shapes[f"{attention}.v_bias"] = (hidden,)
        shapes[f"{attention}.in_proj.weight"] = (3 * hidden, hidden)
        if settings.content_to_position:
            shapes |= linear(f"{attention}.pos_proj", hidden, hidden, bias=False)
        if settings.position_to_content:
            shapes |= linear(f"{attention}.pos_q_proj", hidden, hidden)
        shapes |= linear(f"{layer}.attention.output.dense", hidden, hidden)
        shapes |= norm(f"{layer}.attention.output.LayerNorm", hidden)
        shapes |= linear(f"{layer}.intermediate.dense", inner, hidden)
        shapes |= linear(f"{layer}.output.dense", hidden, inner)
        shapes |= norm(f"{layer}.output.LayerNorm", hidden)
    return shapes


_BIAS = "attention.qkv_proj.bias"
# all of it, with the rows of each head together
_MATRIX = "attention.self.in_proj.weight"
# tensors below "encoder.layer.N." that v2 has under another name, or not at all
_LAYER = {
    "attention.self.q_bias": ParameterSlot(_BIAS, "q"),
    "attention.self.v_bias": ParameterSlot(_BIAS, "v"),
    "attention.self.pos_proj.weight": ParameterSlot("attention.pos_key_proj.weight"),
    "attention.self.pos_q_proj.weight": ParameterSlot("attention.pos_query_proj.weight"),
    "attention.self.pos_q_proj.bias": ParameterSlot("attention.pos_query_proj.bias"),
}


def slot(name: str, heads: int) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``DebertaModel`` with so many heads."""
    if name.startswith("encoder.layer."):
        _, _, index, rest = name.split(".", 3)
        if rest == _MATRIX:
            return ParameterSlot(f"layers.{index}.attention.qkv_proj.weight", ByHead(heads, ("q", "k", "v")))
        if own := _LAYER.get(rest):
            return ParameterSlot(f"layers.{index}.{own.parameter}", own.part)
    return deberta_v2_settings.slot(name)
