"""The configuration and the checkpoint of ModernBERT, as plain data: prep and the engine read them by this code.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear, norm
from encoder_plugins.backbones.config_checks import ConfigFields
from encoder_plugins.backbones.rotary_settings import GLOBAL, LOCAL, layer_types, thetas

# what transformers' ModernBertConfig assumes
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "modernbert",
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
    }
)
# the rotary base's name in configurations that transformers 4 wrote
_FLAT = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}


@dataclass(frozen=True, slots=True)
class Settings:
    """A ModernBERT configuration, in either of its two forms.

    Attributes:
        hidden_size: Width of a token.
        intermediate_size: Width inside the feed-forward block.
        heads: Attention heads.
        vocabulary: Rows of the vocabulary.
        positions: Positions that the rotary tables have.
        epsilon: Epsilon of all layer norms.
        norm_bias: Whether layer norms have a bias.
        attention_bias: Whether the attention's projections have one.
        mlp_bias: Whether the feed-forward block has one.
        window: Tokens that a local layer attends to on either side.
        layer_types: For each layer, ``full_attention`` or ``sliding_attention``.
        thetas: The rotary base by layer type.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    vocabulary: int
    positions: int
    epsilon: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    window: int
    layer_types: tuple[str, ...]
    thetas: Mapping[str, float]

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest text that there are positions for."""
        return self.positions

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read a ``ModernBertConfig``, or the object of its ``config.json``.

        Raises:
            UnsupportedConfig: A field has a value that is not supported, or that no model can have.
        """
        fields = ConfigFields(config, DEFAULTS)
        fields.choice("model_type", ("modernbert",))
        fields.choice("hidden_activation", ("gelu",))
        if fields.divided("hidden_size", "num_attention_heads") % 2:
            raise fields.refuse("num_attention_heads", "rotary positions need an even head size")
        return cls(
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            heads=fields.integer("num_attention_heads"),
            vocabulary=fields.integer("vocab_size"),
            positions=fields.integer("max_position_embeddings"),
            epsilon=fields.epsilon("norm_eps"),
            norm_bias=fields.flag("norm_bias"),
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            window=fields.integer("local_attention") // 2,
            layer_types=_layer_types(fields),
            thetas=thetas(fields, _FLAT),
        )

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.heads


def _layer_types(fields: ConfigFields) -> tuple[str, ...]:
    """Return each layer's type: as listed, or global at every n-th layer from the first."""
    layers = fields.integer("num_hidden_layers")
    listed = layer_types(fields, layers)
    if listed is not None:
        return listed
    every = fields.integer("global_attn_every_n_layers")
    return tuple(LOCAL if index % every else GLOBAL for index in range(layers))


def layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``ModernBertModel``; raises UnsupportedConfig as ``Settings.read`` does."""
    return CheckpointLayout(shapes=_shapes(Settings.read(config)), slot=slot)


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, inner = settings.hidden_size, settings.intermediate_size
    shapes: dict[str, Shape] = {"embeddings.tok_embeddings.weight": (settings.vocabulary, hidden)}
    shapes |= norm("embeddings.norm", hidden, bias=settings.norm_bias)
    for index in range(len(settings.layer_types)):
        layer = f"layers.{index}"
        if index:
            shapes |= norm(f"{layer}.attn_norm", hidden, bias=settings.norm_bias)
        shapes |= linear(f"{layer}.attn.Wqkv", 3 * hidden, hidden, bias=settings.attention_bias)
        shapes |= linear(f"{layer}.attn.Wo", hidden, hidden, bias=settings.attention_bias)
        shapes |= norm(f"{layer}.mlp_norm", hidden, bias=settings.norm_bias)
        shapes |= linear(f"{layer}.mlp.Wi", 2 * inner, hidden, bias=settings.mlp_bias)
        shapes |= linear(f"{layer}.mlp.Wo", hidden, inner, bias=settings.mlp_bias)
    shapes |= norm("final_norm", hidden, bias=settings.norm_bias)
    return shapes


def slot(name: str) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``ModernBertModel``."""
    return ParameterSlot(name.replace(".mlp.", "."))
