"""The configuration and the checkpoint of mT5's encoder, as plain data: prep and the engine read them by this code.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear, norm
from encoder_plugins.backbones.config_checks import ConfigFields, UnsupportedConfig

# what transformers' MT5Config assumes
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "mt5",
        "vocab_size": 250112,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "gated-gelu",
        "dense_act_fn": "gelu_new",
        "is_gated_act": True,
        "is_decoder": False,
    }
)
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "d_model": "hidden_size",
        "num_heads": "num_attention_heads",
        "num_layers": "num_hidden_layers",
        "d_kv": "head_dim",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """An mT5 configuration, as far as its encoder goes.

    Attributes:
        hidden_size: Width of a token.
        intermediate_size: Width inside the feed-forward block.
        heads: Attention heads.
        head_size: Width of a head; heads * head_size need not be the hidden size.
        layers: Encoder layers.
        vocabulary: Rows of the vocabulary.
        epsilon: Epsilon of all norms.
        buckets: Rows of the bias table.
        max_distance: The distance from which on all share the last bucket.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    head_size: int
    layers: int
    vocabulary: int
    epsilon: float
    buckets: int
    max_distance: int

    @classmethod
    def read(cls, config: Any) -> Settings:
        """Read an ``MT5Config``, or the object of its ``config.json``.

        Raises:
            UnsupportedConfig: A field has a value that is not supported, or that no model can have.
        """
        fields = ConfigFields(config, DEFAULTS, ALIASES)
        # "gated-gelu" is the tanh form, whatever its name says
        fields.choice("feed_forward_proj", ("gated-gelu",))
        # transformers derives both from it, unless the configuration has them
        fields.choice("dense_act_fn", ("gelu_new", "gelu_pytorch_tanh"))
        fields.choice("is_gated_act", (True,))
        fields.choice("is_decoder", (False,))
        buckets = fields.integer("relative_attention_num_buckets", least=4)
        if buckets % 2:
            raise fields.refuse("relative_attention_num_buckets", "it must be even: half are for each direction")
        max_distance = fields.integer("relative_attention_max_distance")
        if max_distance <= buckets // 4:
            raise fields.refuse(
                "relative_attention_max_distance", f"with {buckets} buckets it must be above {buckets // 4}"
            )
        return cls(
            hidden_size=fields.integer("d_model"),
            intermediate_size=fields.integer("d_ff"),
            heads=fields.integer("num_heads"),
            head_size=fields.integer("d_kv"),
            layers=fields.integer("num_layers"),
            vocabulary=fields.integer("vocab_size"),
            epsilon=fields.epsilon("layer_norm_epsilon"),
            buckets=buckets,
            max_distance=max_distance,
        )


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that cannot hold what the feed-forward blocks compute.

    Args:
        dtype: Its name in torch, e.g. ``bfloat16``.

    Raises:
        UnsupportedConfig: It is float16.
    """
    if dtype == "float16":
        raise UnsupportedConfig(
            "mt5: dtype=float16 is not supported: values in the feed-forward blocks exceed its maximum of 65504 "
            "and become infinite; accepted: bfloat16, float32"
        )


def layout(config: Any) -> CheckpointLayout:
    """Return the tensors of transformers' ``T5EncoderModel``; raises UnsupportedConfig as ``Settings.read`` does."""
    return CheckpointLayout(
        shapes=_shapes(Settings.read(config)),
        slot=slot,
        # transformers ties the two, and writes either or both
        aliases={"encoder.embed_tokens.weight": "shared.weight"},
    )


def _shapes(settings: Settings) -> dict[str, Shape]:
    hidden, width, inner = settings.hidden_size, settings.heads * settings.head_size, settings.intermediate_size
    shapes: dict[str, Shape] = {
        "shared.weight": (settings.vocabulary, hidden),
        **norm("encoder.final_layer_norm", hidden, bias=False),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (settings.buckets, settings.heads),
    }
    for index in range(settings.layers):
        block = f"encoder.block.{index}.layer"
        for name in "qkv":
            shapes |= linear(f"{block}.0.SelfAttention.{name}", width, hidden, bias=False)
        shapes |= linear(f"{block}.0.SelfAttention.o", hidden, width, bias=False)
        shapes |= norm(f"{block}.0.layer_norm", hidden, bias=False)
        for name in ("wi_0", "wi_1"):
            shapes |= linear(f"{block}.1.DenseReluDense.{name}", inner, hidden, bias=False)
        shapes |= linear(f"{block}.1.DenseReluDense.wo", hidden, inner, bias=False)
        shapes |= norm(f"{block}.1.layer_norm", hidden, bias=False)
    return shapes


# tensors below "encoder.block.N.layer."
_LAYER = {
    "0.SelfAttention.q.weight": ParameterSlot("qkv_proj.weight", "q"),
    "0.SelfAttention.k.weight": ParameterSlot("qkv_proj.weight", "k"),
    "0.SelfAttention.v.weight": ParameterSlot("qkv_proj.weight", "v"),
    "0.SelfAttention.o.weight": ParameterSlot("o_proj.weight"),
    "0.layer_norm.weight": ParameterSlot("attention_norm.weight"),
    "1.DenseReluDense.wi_0.weight": ParameterSlot("gate_up_proj.weight", 0),
    "1.DenseReluDense.wi_1.weight": ParameterSlot("gate_up_proj.weight", 1),
    "1.DenseReluDense.wo.weight": ParameterSlot("down_proj.weight"),
    "1.layer_norm.weight": ParameterSlot("feed_forward_norm.weight"),
}


def slot(name: str) -> ParameterSlot:
    """Return the slot of the tensor ``name`` of transformers' ``T5EncoderModel``."""
    if name.endswith(".relative_attention_bias.weight"):
        return ParameterSlot("relative.embeddings.weight")
    if name.startswith("encoder.block."):
        _, _, index, _, rest = name.split(".", 4)
        target, part = _LAYER[rest]
        return ParameterSlot(f"layers.{index}.{target}", part)
    return ParameterSlot(name.replace("encoder.final_layer_norm.", "final_norm."))
