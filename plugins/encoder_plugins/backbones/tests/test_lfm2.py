"""LFM2's text model against transformers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import Lfm2Config, Lfm2Model

    from encoder_plugins.backbones import lfm2, lfm2_settings, token_marks
    from encoder_plugins.backbones.config_checks import UnsupportedConfig

pytestmark = pytest.mark.filterwarnings("ignore")

LONGEST = 90
VOCABULARY = 211
MIXED = ["conv", "full_attention", "conv", "conv", "full_attention"]


def config(**switches: Any) -> Lfm2Config:
    """A configuration with both kinds of layers, and heads of keys for two heads of queries each."""
    tiny = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 96,
        "num_hidden_layers": len(MIXED),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": MIXED,
        "max_position_embeddings": 256,
        "block_multiple_of": 16,
    }
    return Lfm2Config(**{**tiny, **switches})


def pair(switches: dict[str, Any], build: Any, draw: Any) -> tuple[Any, Lfm2Model]:
    reference = draw(Lfm2Model(config(**switches)))
    encoder = build(lfm2.Lfm2Encoder, reference.config)
    encoder.load(reference.state_dict(), lfm2_settings.layout(reference.config))
    return encoder, reference


SWITCHES: dict[str, dict[str, Any]] = {
    "published": {},
    "one head of keys": {"num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3}},
    "bias": {"conv_bias": True},
    "four taps": {"conv_L_cache": 4},
    "one tap": {"conv_L_cache": 1},
    "attention only": {"layer_types": ["full_attention"] * 5, "num_key_value_heads": 4},
    "plain feed-forward": {"block_auto_adjust_ff_dim": False},
}


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=list(SWITCHES))
def test_a_packed_batch_gives_the_rows_of_transformers(
    switches: dict[str, Any], build: Any, draw: Any, batches: Any, compare: Any, record_property: Any
) -> None:
    encoder, reference = pair(switches, build, draw)
    batch = batches(9, LONGEST, VOCABULARY)
    worst = max(compare(encoder, reference, batch), compare(encoder, reference, batch[:1], padding=5))
    record_property("worst", worst)
    assert worst <= 2e-5


@pytest.mark.parametrize("switches", [{}, {"conv_bias": True}], ids=["published", "bias"])
@torch.inference_mode()
def test_tokens_that_are_queries_only_enter_no_convolution_and_no_other_row(
    switches: dict[str, Any], build: Any, draw: Any, batches: Any
) -> None:
    encoder, reference = pair(switches, build, draw)
    batch = batches(8, 40, VOCABULARY)
    counts = [len(ids) for ids in batch]
    keys = [max(1, count - 4 * number) if number % 2 else count for number, count in enumerate(counts)]
    marks = [
        token_marks.decode(token_marks.encode([count], keys=[seen])) for count, seen in zip(counts, keys, strict=True)
    ]
    separated = token_marks.of_batch(zip(counts, marks, strict=True))
    for found, ids, seen in zip(encoder(batch, 3, separated), batch, keys, strict=True):
        mask = (torch.arange(len(ids)) < seen).long()
        expected = reference(input_ids=ids[None], attention_mask=mask[None]).last_hidden_state[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
        # what the keys have, they have without the tokens behind them
        torch.testing.assert_close(found[:seen], encoder([ids[:seen]])[0], rtol=0, atol=5e-6)
    # and the marks end with their batch, also for a graph that begins behind them
    assert bool((encoder.module.stack.attended == 1).all())
    for found, ids in zip(encoder(batch), batch, strict=True):
        expected = reference(input_ids=ids[None]).last_hidden_state[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


@torch.inference_mode()
def test_a_token_changes_no_row_before_it_and_a_text_none_of_another(build: Any, draw: Any, batches: Any) -> None:
    encoder, _ = pair({}, build, draw)
    first, second = batches(1, 30, VOCABULARY)[0], batches(1, 20, VOCABULARY, seed=5)[0]
    changed = first.clone()
    changed[12] = (changed[12] + 1) % VOCABULARY
    before, after = encoder([first, second]), encoder([changed, second])
    torch.testing.assert_close(before[0][:12], after[0][:12], rtol=0, atol=0)
    assert float((before[0][12:] - after[0][12:]).abs().amax(1).min()) > 1e-3
    torch.testing.assert_close(before[1], after[1], rtol=0, atol=0)


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=list(SWITCHES))
def test_the_layout_is_that_of_transformers(switches: dict[str, Any]) -> None:
    with torch.device("meta"):
        reference = Lfm2Model(config(**switches))
    found = lfm2_settings.layout(reference.config)
    assert {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()} == dict(found.shapes)


def test_the_feed_forward_block_is_as_wide_as_that_of_the_published_checkpoint() -> None:
    # 16 layers of this width are the 350 million parameters of LFM2-350M
    assert lfm2_settings.Settings.read({"block_ff_dim": 6656}).intermediate_size == 4608


def test_another_type_of_model_is_refused() -> None:
    with pytest.raises(UnsupportedConfig, match="model_type='lfm2_moe'"):
        lfm2_settings.Settings.read({"model_type": "lfm2_moe"})
