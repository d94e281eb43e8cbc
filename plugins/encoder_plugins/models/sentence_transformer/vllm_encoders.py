"""What vLLM's own classes of Qwen3 and Gemma 3 compute as the library does, and the tensors that they need. Standard library only.

vLLM skips what it does not know, and starts with a part of a fused tensor missing; the rest ends its start, in words of its own. So all of
it is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones import gemma3_settings
from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear, norm
from encoder_plugins.backbones.config_checks import ConfigFields
from encoder_plugins.backbones.rotary_settings import GLOBAL, LOCAL, layer_types, names_kinds_only

# what transformers' Qwen3Config assumes
QWEN3_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 22_016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }
)
# scaled positions that vLLM computes as transformers does; each was compared
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
# of Gemma 3 as vLLM has it
GEMMA3_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu", "silu")
# fields that decide no shape, and of which our own Gemma 3 computes less than vLLM's
_OURS = {"hidden_activation": "gelu_pytorch_tanh", "rope_parameters": None, "rope_scaling": None}


def qwen3_layout(config: Mapping[str, Any]) -> CheckpointLayout:
    """Return the tensors of transformers' ``Qwen3Model``.

    Raises:
        UnsupportedConfig: vLLM would compute something else, or refuse to start.
    """
    fields = ConfigFields(config, QWEN3_DEFAULTS)
    fields.choice("model_type", ("qwen3",))
    fields.choice("hidden_act", ("silu",))
    fields.epsilon("rms_norm_eps")
    if fields.flag("attention_bias"):
        raise fields.refuse("attention_bias", "vLLM has no bias behind the attention")
    if fields.get("dual_chunk_attention_config") is not None:
        raise fields.refuse("dual_chunk_attention_config", "transformers attends to everything")
    _check_positions(fields, fields.get("rope_parameters"))
    layers = fields.integer("num_hidden_layers")
    _check_window(fields, layers)
    # null means as many as there are of queries
    keys = "num_attention_heads" if fields.get("num_key_value_heads") is None else "num_key_value_heads"
    fields.divided("num_attention_heads", keys)
    head, hidden = fields.integer("head_dim"), fields.integer("hidden_size")
    shapes: dict[str, Shape] = {"embed_tokens.weight": (fields.integer("vocab_size"), hidden)}
    for index in range(layers):
        shapes |= _qwen3_layer(
            f"layers.{index}",
            hidden=hidden,
            inner=fields.integer("intermediate_size"),
            queries=fields.integer("num_attention_heads") * head,
            keys=fields.integer(keys) * head,
            head=head,
        )
    shapes |= norm("norm", hidden, bias=False)
    return CheckpointLayout(shapes=shapes, slot=ParameterSlot)


def gemma3_layout(config: Mapping[str, Any]) -> CheckpointLayout:
    """Return the tensors of transformers' ``Gemma3TextModel``; raises UnsupportedConfig as ``qwen3_layout`` does."""
    fields = ConfigFields(config, gemma3_settings.DEFAULTS)
    fields.choice("model_type", ("gemma3_text",))
    fields.choice("hidden_activation", GEMMA3_ACTIVATIONS)
    parameters = fields.get("rope_parameters") or {}
    if not names_kinds_only(parameters):
        raise fields.refuse("rope_parameters", f"it may have {GLOBAL} and {LOCAL} only")
    for kind in (GLOBAL, LOCAL):
        _check_positions(fields, parameters.get(kind))
    return gemma3_settings.layout({**config, **_OURS})


def _check_positions(fields: ConfigFields, parameters: Any) -> None:
    """Refuse positions that vLLM computes in another way than transformers."""
    for name, given in (("rope_parameters", parameters), ("rope_scaling", fields.get("rope_scaling"))):
        if given is None:
            continue
        if not isinstance(given, Mapping) or given.get("rope_type", given.get("type", "default")) not in ROPE_TYPES:
            raise fields.refuse(name, f"rope_type may be {', '.join(ROPE_TYPES)}")
        if given.get("partial_rotary_factor", 1.0) != 1.0:
            raise fields.refuse(name, "whole heads are rotated")
    if fields.get("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refuse("partial_rotary_factor", "whole heads are rotated")


def _check_window(fields: ConfigFields, layers: int) -> None:
    """Refuse a window that some layers have: vLLM gives it to all or none."""
    window = fields.get("sliding_window") if fields.flag("use_sliding_window") else None
    if window is not None:
        fields.integer("sliding_window")
    kinds = layer_types(fields, layers)
    if kinds is None:
        first = layers if window is None else fields.integer("max_window_layers", least=0)
        kinds = tuple(LOCAL if index >= first else GLOBAL for index in range(layers))
    if len(set(kinds)) > 1 or (window is None and LOCAL in kinds):
        listed = "max_window_layers" if fields.get("layer_types") is None else "layer_types"
        raise fields.refuse(listed, "all layers have the sliding window of use_sliding_window, or none has it")


def _qwen3_layer(name: str, *, hidden: int, inner: int, queries: int, keys: int, head: int) -> dict[str, Shape]:
    """Return the tensors of a layer."""
    shapes: dict[str, Shape] = {}
    for part, rows, columns in (
        ("self_attn.q_proj", queries, hidden),
        ("self_attn.k_proj", keys, hidden),
        ("self_attn.v_proj", keys, hidden),
        ("self_attn.o_proj", hidden, queries),
        ("mlp.gate_proj", inner, hidden),
        ("mlp.up_proj", inner, hidden),
        ("mlp.down_proj", hidden, inner),
    ):
        shapes |= linear(f"{name}.{part}", rows, columns, bias=False)
    for part, size in (
        ("self_attn.q_norm", head),
        ("self_attn.k_norm", head),
        ("input_layernorm", hidden),
        ("post_attention_layernorm", hidden),
    ):
        shapes |= norm(f"{name}.{part}", size, bias=False)
    return shapes
