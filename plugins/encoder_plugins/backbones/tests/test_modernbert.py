"""ModernBERT and mmBERT against transformers; windows and both rotary bases above all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import ModernBertConfig, ModernBertModel

    from encoder_plugins.backbones import modernbert, modernbert_settings
    from encoder_plugins.backbones.attention import PlainAttention

pytestmark = pytest.mark.filterwarnings("ignore")

LONGEST = 150
VOCABULARY = 211
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    # too many for our kernel in layers without a window
    "max_position_embeddings": 1025,
    "local_attention": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}


def pair(switches: dict[str, Any], build: Any, draw: Any) -> tuple[Any, ModernBertModel]:
    reference = draw(ModernBertModel(ModernBertConfig(**TINY | switches, attn_implementation="eager")))
    encoder = build(modernbert.ModernBertEncoder, reference.config)
    weights = {name: tensor for name, tensor in reference.state_dict().items() if "inv_freq" not in name}
    encoder.load(weights, modernbert_settings.layout(reference.config))
    return encoder, reference


@pytest.mark.parametrize("count", [1, 2, 17, 64])
def test_a_packed_batch_gives_the_rows_of_transformers(
    our_attention: bool,
    count: int,
    build: Any,
    draw: Any,
    batches: Any,
    compare: Callable[..., float],
    record_property: Any,
) -> None:
    encoder, reference = pair({}, build, draw)
    assert [isinstance(layer.attn.attention, PlainAttention) for layer in encoder.module.layers] == [
        our_attention and kind == "sliding_attention" for kind in reference.config.layer_types
    ]
    difference = compare(encoder, reference, batches(count, LONGEST, VOCABULARY))
    record_property("worst", difference)
    assert difference <= 2e-5


@pytest.mark.parametrize(
    "switches",
    [
        {"local_attention": 128},
        {"local_attention": 2},
        {"global_attn_every_n_layers": 2},
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]},
        {"global_rope_theta": 160000.0, "local_rope_theta": 160000.0},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0}}},
        {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 77.0}}},
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True},
        {"norm_eps": 1e-2},
    ],
    ids=str,
)
def test_every_switch_is_honoured(
    switches: dict[str, Any], our_attention: bool, build: Any, draw: Any, batches: Any, compare: Any
) -> None:
    encoder, reference = pair(switches, build, draw)
    assert compare(encoder, reference, batches(5, LONGEST, VOCABULARY)) <= 2e-5


def test_rows_of_padding_change_nothing(our_attention: bool, build: Any, draw: Any, batches: Any, compare: Any) -> None:
    encoder, reference = pair({}, build, draw)
    assert compare(encoder, reference, batches(3, LONGEST, VOCABULARY), padding=29) <= 2e-5


@pytest.mark.parametrize("switches", [{}, {"norm_bias": True, "attention_bias": True, "mlp_bias": True}], ids=str)
def test_the_layout_is_that_of_transformers(switches: dict[str, Any]) -> None:
    with torch.device("meta"):
        reference = ModernBertModel(ModernBertConfig(**TINY | switches))
    expected = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    assert dict(modernbert_settings.layout(reference.config).shapes) == expected


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("embeddings.tok_embeddings.weight", "embeddings.tok_embeddings.weight"),
        ("embeddings.norm.weight", "embeddings.norm.weight"),
        ("layers.1.attn_norm.weight", "layers.1.attn_norm.weight"),
        ("layers.21.attn.Wqkv.weight", "layers.21.attn.Wqkv.weight"),
        ("layers.0.attn.Wo.weight", "layers.0.attn.Wo.weight"),
        ("layers.0.mlp_norm.weight", "layers.0.mlp_norm.weight"),
        ("layers.0.mlp.Wi.weight", "layers.0.Wi.weight"),
        ("layers.0.mlp.Wo.bias", "layers.0.Wo.bias"),
        ("final_norm.weight", "final_norm.weight"),
    ],
)
def test_the_slot_of_a_tensor(name: str, parameter: str) -> None:
    assert modernbert_settings.slot(name) == (parameter, None)
