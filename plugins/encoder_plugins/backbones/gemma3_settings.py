"""The configuration and the checkpoint of Gemma 3's text encoder, as plain data: prep and the engine read them by this code.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear, norm
from encoder_plugins.backbones.config_checks import ConfigFields, UnsupportedConfig
from encoder_plugins.backbones.rotary_settings import GLOBAL, LOCAL, layer_types, thetas

# what transformers' Gemma3TextConfig assumes
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "gemma3_text",
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "use_bidirectional_attention": False,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    }
)
# the rotary base's name in configurations that transformers 4 wrote
_FLAT = {GLOBAL: "rope_theta", LOCAL: "rope_local_base_freq"}


@dataclass(frozen=True, slots=True)
class Settings:
    """A Gemma 3 text configuration, in either of its two forms.

    Attributes:
        hidden_size: Width of a token.
        intermediate_size: Width inside the feed-forward block.
        heads: Heads of queries.
        key_heads: Heads of keys and values; each serves ``heads / key_heads`` heads of queries.
        head_size: Width of a head; heads * head_size need not be the hidden size.
        vocabulary: Rows of the vocabulary.
        positions: Positions that the rotary tables have.
        epsilon: Epsilon of all norms.
        attention_bias: Whether the attention's projections have a bias.
        scale: What scores are multiplied by.
        bidirectional: Whether tokens attend to those behind them, too.
        window: Tokens that a local layer attends to on either side (if not bidirectional: before the token).
        layer_types: For each layer, ``full_attention`` or ``sliding_attention``.
        thetas: The rotary base by layer type.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    positions: int
    epsilon: float
    attention_bias: bool
    scale: float
    bidirectional: bool
    window: int
    layer_types: tuple[str, ...]
    thetas: Mapping[str, float]

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read a ``Gemma3TextConfig``, or the object of its ``config.json``.

        Raises:
            UnsupportedConfig: A field has a value that is not supported, or that no model can have.
        """
        fields = ConfigFields(config, DEFAULTS)
        fields.choice("hidden_activation", ("gelu_pytorch_tanh",))
        if fields.get("attn_logit_softcapping") is not None:
            raise fields.refuse("attn_logit_softcapping", "scores are not capped")
        fields.divided("num_attention_heads", "num_key_value_heads")
        if fields.integer("head_dim") % 2:
            raise fields.refuse("head_dim", "rotary positions need an even head size")
        bidirectional = bool(fields.choice("use_bidirectional_attention", (True, False, None)))
        return cls(
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            heads=fields.integer("num_attention_heads"),
            key_heads=fields.integer("num_key_value_heads"),
            head_size=fields.integer("head_dim"),
            vocabulary=fields.integer("vocab_size"),
            positions=fields.integer("max_position_embeddings"),
            epsilon=fields.epsilon("rms_norm_eps"),
            attention_bias=fields.flag("attention_bias"),
            scale=fields.integer("query_pre_attn_scalar") ** -0.5,
            bidirectional=bidirectional,
            window=_window(fields, bidirectional),
            layer_types=_layer_types(fields),
            thetas=thetas(fields, _FLAT),
        )


def _window(fields: ConfigFields, bidirectional: bool) -> int:
    """Return the tokens on either side that a local layer attends to.

    ``sliding_window`` counts both sides of a bidirectional model in config.json. The object of transformers has one more than
    a side instead, because its masks take distances below that.
    """
    window = fields.integer("sliding_window")
    return window // 2 if bidirectional and isinstance(fields.config, Mapping) else window - 1


def _layer_types(fields: ConfigFields) -> tuple[str, ...]:
    """Return each layer's type: as listed, or global at every n-th layer from the n-th."""
    layers = fields.integer("num_hidden_layers")
    listed = layer_types(fields, layers)
    if listed is not None:
        return listed
    every = fields.integer("sliding_window_pattern")
    return tuple(LOCAL if index % every else GLOBAL for index in range(1, layers + 1))


def check_bidirectional(settings: Settings) -> None:
    """Refuse a model whose tokens attend to those before them only.

    Raises:
        UnsupportedConfig: It is one.
    """
    if not settings.bidirectional:
        raise UnsupportedConfig(
            "gemma3_text: use_bidirectional_attention is not true: a decoder is not supported; accepted: true"
        )


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that cannot hold what the layers compute.

    Args:
        dtype: Its name in torch, e.g. ``bfloat16``.

    Raises:
        UnsupportedConfig: It is float16.
    """
    if dtype == "float16":
        raise UnsupportedConfig(
            "gemma3_text: dtype=float16 is not supported: hidden values of trained checkpoints exceed its maximum of 65504 "
            "and become infinite; accepted: bfloat16, float32"
        )


def layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``Gemma3TextModel``; raises UnsupportedConfig as ``Settings.read`` does."""
    return CheckpointLayout(shapes=_shapes(Settings.read(config)), slot=slot)


NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, inner, bias = settings.hidden_size, settings.intermediate_size, settings.attention_bias
    queries, keys = settings.heads * settings.head_size, settings.key_heads * settings.head_size
    shapes: dict[str, Shape] = {"embed_tokens.weight": (settings.vocabulary, hidden)}
    for index in range(len(settings.layer_types)):
        layer = f"layers.{index}"
        shapes |= linear(f"{layer}.self_attn.q_proj", queries, hidden, bias=bias)
        shapes |= linear(f"{layer}.self_attn.k_proj", keys, hidden, bias=bias)
        shapes |= linear(f"{layer}.self_attn.v_proj", keys, hidden, bias=bias)
        shapes |= linear(f"{layer}.self_attn.o_proj", hidden, queries, bias=bias)
        shapes |= norm(f"{layer}.self_attn.q_norm", settings.head_size, bias=False)
        shapes |= norm(f"{layer}.self_attn.k_norm", settings.head_size, bias=False)
        for name in ("gate_proj", "up_proj"):
            shapes |= linear(f"{layer}.mlp.{name}", inner, hidden, bias=False)
        shapes |= linear(f"{layer}.mlp.down_proj", hidden, inner, bias=False)
        for name in NORMS:
            shapes |= norm(f"{layer}.{name}", hidden, bias=False)
    shapes |= norm("norm", hidden, bias=False)
    return shapes


# parts of fused parameters
_PARTS: Mapping[str, tuple[str, int | str]] = MappingProxyType(
    {
        ".q_proj.": (".qkv_proj.", "q"),
        ".k_proj.": (".qkv_proj.", "k"),
        ".v_proj.": (".qkv_proj.", "v"),
        ".gate_proj.": (".gate_up_proj.", 0),
        ".up_proj.": (".gate_up_proj.", 1),
    }
)


def slot(name: str) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``Gemma3TextModel``."""
    for published, (parameter, part) in _PARTS.items():
        if published in name:
            return ParameterSlot(name.replace(published, parameter), part)
    return ParameterSlot(name)
