"""mT5's encoder against transformers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import MT5Config, T5EncoderModel

    from encoder_kernels.relative_bias_attention import t5_bias
    from encoder_plugins.backbones import bias_table, mt5, mt5_settings
    from encoder_plugins.backbones.bias_table import BiasTable

pytestmark = pytest.mark.filterwarnings("ignore")

LONGEST = 150
VOCABULARY = 211


def config(**switches: Any) -> MT5Config:
    """A configuration whose heads together are wider than a token, as in small mT5."""
    tiny = {
        "vocab_size": VOCABULARY,
        "d_model": 64,
        "d_kv": 32,
        "d_ff": 96,
        "num_layers": 3,
        "num_heads": 3,
        "is_encoder_decoder": False,
    }
    return MT5Config(**{**tiny, **switches})


def pair(switches: dict[str, Any], build: Any, draw: Any) -> tuple[Any, T5EncoderModel]:
    reference = draw(T5EncoderModel(config(**switches)))
    with torch.no_grad():
        # without scaling, scores of unit queries would be as large as a head is wide
        for name, parameter in reference.named_parameters():
            if name.endswith("SelfAttention.q.weight"):
                parameter *= 0.25
    encoder = build(mt5.Mt5Encoder, reference.config)
    encoder.load(reference.state_dict(), mt5_settings.layout(reference.config))
    return encoder, reference


@pytest.mark.parametrize("count", [1, 2, 17, 64])
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
        {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 40},
        {"relative_attention_max_distance": 400},
        {"layer_norm_epsilon": 1e-2},
        {"num_heads": 1, "d_kv": 48},
    ],
    ids=str,
)
def test_every_switch_is_honoured(switches: dict[str, Any], build: Any, draw: Any, batches: Any, compare: Any) -> None:
    encoder, reference = pair(switches, build, draw)
    assert compare(encoder, reference, batches(5, LONGEST, VOCABULARY)) <= 2e-5


def test_rows_of_padding_change_nothing(build: Any, draw: Any, batches: Any, compare: Any) -> None:
    encoder, reference = pair({}, build, draw)
    assert compare(encoder, reference, batches(3, LONGEST, VOCABULARY), padding=29) <= 2e-5


def test_the_layout_is_that_of_transformers() -> None:
    with torch.device("meta"):
        reference = T5EncoderModel(config())
    found = mt5_settings.layout(reference.config)
    state = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    assert {found.aliases.get(name, name): shape for name, shape in state.items()} == dict(found.shapes)


def test_each_rank_takes_the_bias_of_its_own_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    table = BiasTable(8, 6, 20)
    torch.nn.init.normal_(table.embeddings.weight)
    whole = t5_bias(table.embeddings.weight, max_distance=20)
    monkeypatch.setattr(bias_table, "get_tensor_model_parallel_world_size", lambda: 3)
    for rank in range(3):
        monkeypatch.setattr(bias_table, "get_tensor_model_parallel_rank", lambda rank=rank: rank)
        assert torch.equal(table.by_distance(), whole[2 * rank : 2 * rank + 2])


@pytest.mark.parametrize("kept", ["shared.weight", "encoder.embed_tokens.weight"])
def test_either_name_of_the_vocabulary_will_do(kept: str, build: Any, draw: Any, batches: Any, compare: Any) -> None:
    reference = draw(T5EncoderModel(config(num_layers=1)))
    both = {"shared.weight", "encoder.embed_tokens.weight"}
    weights = {name: tensor for name, tensor in reference.state_dict().items() if name not in both - {kept}}
    weights[kept] = reference.shared.weight
    encoder = build(mt5.Mt5Encoder, reference.config)
    encoder.load(weights, mt5_settings.layout(reference.config))
    # one layer, and scores far from uniform: more of the sum is rounded away
    assert compare(encoder, reference, batches(2, 20, VOCABULARY)) <= 1e-4


@pytest.mark.parametrize(
    ("name", "parameter", "part"),
    [
        ("shared.weight", "shared.weight", None),
        ("encoder.final_layer_norm.weight", "final_norm.weight", None),
        (
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "relative.embeddings.weight",
            None,
        ),
        ("encoder.block.23.layer.0.SelfAttention.q.weight", "layers.23.qkv_proj.weight", "q"),
        ("encoder.block.1.layer.0.SelfAttention.k.weight", "layers.1.qkv_proj.weight", "k"),
        ("encoder.block.1.layer.0.SelfAttention.v.weight", "layers.1.qkv_proj.weight", "v"),
        ("encoder.block.1.layer.0.SelfAttention.o.weight", "layers.1.o_proj.weight", None),
        ("encoder.block.1.layer.0.layer_norm.weight", "layers.1.attention_norm.weight", None),
        ("encoder.block.1.layer.1.DenseReluDense.wi_0.weight", "layers.1.gate_up_proj.weight", 0),
        ("encoder.block.1.layer.1.DenseReluDense.wi_1.weight", "layers.1.gate_up_proj.weight", 1),
        ("encoder.block.1.layer.1.DenseReluDense.wo.weight", "layers.1.down_proj.weight", None),
        ("encoder.block.1.layer.1.layer_norm.weight", "layers.1.feed_forward_norm.weight", None),
    ],
)
def test_the_slot_of_a_tensor(name: str, parameter: str, part: int | str | None) -> None:
    assert mt5_settings.slot(name) == (parameter, part)
