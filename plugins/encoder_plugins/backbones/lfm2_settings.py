"""The configuration and the checkpoint of LFM2's text model, as plain data: prep and the engine read them by this code.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear, norm
from encoder_plugins.backbones.config_checks import ConfigFields
from encoder_plugins.backbones.rotary_settings import theta

# what transformers' Lfm2Config assumes
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "lfm2",
        "vocab_size": 65_536,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
    }
)
ATTENTION, CONVOLUTION = "full_attention", "conv"


@dataclass(frozen=True, slots=True)
class Settings:
    """An LFM2 configuration.

    Attributes:
        hidden_size: Width of a token.
        intermediate_size: Width inside the feed-forward block, adjusted as the configuration says.
        heads: Heads of queries.
        key_heads: Heads of keys and values; each serves ``heads / key_heads`` heads of queries.
        head_size: Width of a head.
        vocabulary: Rows of the vocabulary.
        positions: Positions that the rotary tables have.
        epsilon: Epsilon of all norms.
        taps: Tokens that a convolution covers: the token itself and those before it.
        convolution_bias: Whether the convolutions and their projections have a bias.
        layer_types: For each layer, ``full_attention`` or ``conv``.
        theta: The rotary base.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    positions: int
    epsilon: float
    taps: int
    convolution_bias: bool
    layer_types: tuple[str, ...]
    theta: float

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest text that there are positions for."""
        return self.positions

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read an ``Lfm2Config``, or the object of its ``config.json``.

        Raises:
            UnsupportedConfig: A field has a value that is not supported, or that no model can have.
        """
        fields = ConfigFields(config, DEFAULTS)
        fields.choice("model_type", ("lfm2",))
        fields.divided("num_attention_heads", "num_key_value_heads")
        listed = fields.get("head_dim") is not None
        head_size = fields.integer("head_dim") if listed else fields.divided("hidden_size", "num_attention_heads")
        if head_size % 2:
            raise fields.refuse("head_dim" if listed else "hidden_size", "rotary positions need an even head size")
        return cls(
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=_intermediate_size(fields),
            heads=fields.integer("num_attention_heads"),
            key_heads=fields.integer("num_key_value_heads"),
            head_size=head_size,
            vocabulary=fields.integer("vocab_size"),
            positions=fields.integer("max_position_embeddings"),
            epsilon=fields.epsilon("norm_eps"),
            taps=fields.integer("conv_L_cache"),
            convolution_bias=fields.flag("conv_bias"),
            layer_types=_layer_types(fields),
            theta=theta(fields, "rope_theta"),
        )


def _intermediate_size(fields: ConfigFields) -> int:
    """Return the width inside the feed-forward block, as transformers computes it."""
    # the field's name in published configurations, which goes first in transformers, too
    size = fields.integer("intermediate_size" if fields.get("block_ff_dim") is None else "block_ff_dim")
    if not fields.flag("block_auto_adjust_ff_dim"):
        return size
    size = int(2 * size / 3)
    factor = fields.get("block_ffn_dim_multiplier")
    if factor is None:
        return size
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        raise fields.refuse("block_ffn_dim_multiplier", "it must be a number above 0")
    multiple = fields.integer("block_multiple_of")
    return multiple * -(-int(factor * size) // multiple)


def _layer_types(fields: ConfigFields) -> tuple[str, ...]:
    """Return each layer's type: as listed, or by the indices of the attention layers."""
    layers = fields.integer("num_hidden_layers")
    listed = fields.get("layer_types")
    if listed is None:
        indices = fields.get("full_attn_idxs")
        attention = range(layers) if indices is None else indices
        listed = [ATTENTION if index in attention else CONVOLUTION for index in range(layers)]
    if not isinstance(listed, list | tuple) or len(listed) != layers or not {ATTENTION, CONVOLUTION}.issuperset(listed):
        raise fields.refuse("layer_types", f"it must name {ATTENTION} or {CONVOLUTION} for each of {layers} layers")
    if ATTENTION not in listed:
        # the engine's batches of sequences come to the encoder with its attention layers
        raise fields.refuse("layer_types", f"one layer at least must be {ATTENTION}")
    return tuple(listed)


def layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``Lfm2Model``; raises UnsupportedConfig as ``Settings.read`` does."""
    return CheckpointLayout(shapes=_shapes(Settings.read(config)), slot=slot)


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, inner, bias = settings.hidden_size, settings.intermediate_size, settings.convolution_bias
    queries, keys = settings.heads * settings.head_size, settings.key_heads * settings.head_size
    shapes: dict[str, Shape] = {"embed_tokens.weight": (settings.vocabulary, hidden)}
    for index, kind in enumerate(settings.layer_types):
        layer = f"layers.{index}"
        if kind == ATTENTION:
            shapes |= linear(f"{layer}.self_attn.q_proj", queries, hidden, bias=False)
            shapes |= linear(f"{layer}.self_attn.k_proj", keys, hidden, bias=False)
            shapes |= linear(f"{layer}.self_attn.v_proj", keys, hidden, bias=False)
            shapes |= linear(f"{layer}.self_attn.out_proj", hidden, queries, bias=False)
            shapes |= norm(f"{layer}.self_attn.q_layernorm", settings.head_size, bias=False)
            shapes |= norm(f"{layer}.self_attn.k_layernorm", settings.head_size, bias=False)
        else:
            shapes[f"{layer}.conv.conv.weight"] = (hidden, 1, settings.taps)
            if bias:
                shapes[f"{layer}.conv.conv.bias"] = (hidden,)
            shapes |= linear(f"{layer}.conv.in_proj", 3 * hidden, hidden, bias=bias)
            shapes |= linear(f"{layer}.conv.out_proj", hidden, hidden, bias=bias)
        shapes |= linear(f"{layer}.feed_forward.w1", inner, hidden, bias=False)
        shapes |= linear(f"{layer}.feed_forward.w3", inner, hidden, bias=False)
        shapes |= linear(f"{layer}.feed_forward.w2", hidden, inner, bias=False)
        shapes |= norm(f"{layer}.operator_norm", hidden, bias=False)
        shapes |= norm(f"{layer}.ffn_norm", hidden, bias=False)
    shapes |= norm("embedding_norm", hidden, bias=False)
    return shapes


# parts of fused parameters
_PARTS: Mapping[str, tuple[str, int | str]] = MappingProxyType(
    {
        ".q_proj.": (".qkv_proj.", "q"),
        ".k_proj.": (".qkv_proj.", "k"),
        ".v_proj.": (".qkv_proj.", "v"),
        ".w1.": (".w13.", 0),
        ".w3.": (".w13.", 1),
    }
)


def slot(name: str) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``Lfm2Model``."""
    for published, (parameter, part) in _PARTS.items():
        if published in name:
            return ParameterSlot("stack." + name.replace(published, parameter), part)
    return ParameterSlot("stack." + name)
