"""Gemma 3's bidirectional text model against transformers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import Gemma3TextConfig, Gemma3TextModel

    from encoder_plugins.backbones import gemma3, gemma3_settings
    from encoder_plugins.backbones.config_checks import UnsupportedConfig

pytestmark = pytest.mark.filterwarnings("ignore")

# several windows long
LONGEST = 150
VOCABULARY = 211


def config(**switches: Any) -> Gemma3TextConfig:
    """A configuration with one global layer, one head of keys for four of queries, and heads that are together wider than a token."""
    tiny = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 80,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "max_position_embeddings": 256,
        "sliding_window": 32,
        "use_bidirectional_attention": True,
    }
    return Gemma3TextConfig(**{**tiny, **switches})


def pair(switches: dict[str, Any], build: Any, draw: Any) -> tuple[Any, Gemma3TextModel]:
    reference = draw(Gemma3TextModel(config(**switches)))
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            # a norm's factor is one more than its weight
            if "norm" in name:
                parameter -= 1.0
    encoder = build(gemma3.Gemma3Encoder, reference.config)
    encoder.load(reference.state_dict(), gemma3_settings.layout(reference.config))
    return encoder, reference


@pytest.mark.parametrize("count", [1, 17])
def test_a_packed_batch_gives_the_rows_of_transformers(
    count: int, build: Any, draw: Any, batches: Any, compare: Callable[..., float], record_property: Any
) -> None:
    encoder, reference = pair({}, build, draw)
    difference = compare(encoder, reference, batches(count, LONGEST, VOCABULARY))
    record_property("worst", difference)
    assert difference <= 2e-5


@pytest.mark.parametrize(
    "switches",
    [
        {"sliding_window": 7},
        {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2},
        {"num_key_value_heads": 2, "query_pre_attn_scalar": 100},
        {"num_key_value_heads": 4, "attention_bias": True},
        {"rms_norm_eps": 1e-2, "rope_parameters": {"sliding_attention": {"rope_theta": 50.0, "rope_type": "default"}}},
    ],
    ids=str,
)
def test_every_switch_is_honoured(switches: dict[str, Any], build: Any, draw: Any, batches: Any, compare: Any) -> None:
    encoder, reference = pair(switches, build, draw)
    assert compare(encoder, reference, batches(5, LONGEST, VOCABULARY)) <= 2e-5


def test_a_window_reaches_as_far_as_that_of_transformers(build: Any, draw: Any, batches: Any, compare: Any) -> None:
    # a window that is one token off shows in every row
    for window in (8, 9):
        encoder, reference = pair(
            {
                "sliding_window": window,
                "num_hidden_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            build,
            draw,
        )
        assert compare(encoder, reference, batches(2, 40, VOCABULARY)) <= 2e-5
        assert gemma3_settings.Settings.read(reference.config).window == 4


def test_rows_of_padding_change_nothing(build: Any, draw: Any, batches: Any, compare: Any) -> None:
    encoder, reference = pair({}, build, draw)
    assert compare(encoder, reference, batches(3, LONGEST, VOCABULARY), padding=29) <= 2e-5


def test_rows_do_not_depend_on_the_batch(build: Any, draw: Any, batches: Any) -> None:
    encoder, _ = pair({}, build, draw)
    batch = batches(7, LONGEST, VOCABULARY)
    for rows, ids in zip(encoder(batch), batch, strict=True):
        torch.testing.assert_close(rows, encoder([ids])[0], rtol=0, atol=5e-6)


def test_the_layout_is_that_of_transformers() -> None:
    with torch.device("meta"):
        reference = Gemma3TextModel(config(attention_bias=True))
    found = gemma3_settings.layout(reference.config)
    assert {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()} == dict(found.shapes)


def test_a_decoder_and_float16_are_refused_with_the_reason(build: Any) -> None:
    with pytest.raises(UnsupportedConfig, match="use_bidirectional_attention is not true"):
        build(gemma3.Gemma3Encoder, config(use_bidirectional_attention=False))
    with pytest.raises(UnsupportedConfig, match=r"dtype=float16.*65504.*bfloat16, float32"):
        build(gemma3.Gemma3Encoder, config(), torch.float16)
