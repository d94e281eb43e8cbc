"""DeBERTa v1 against transformers, switch by switch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from encoder_plugins.backbones.config_checks import UnsupportedConfig

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import DebertaConfig, DebertaModel
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.model_loader.reload import layerwise

    from encoder_plugins.backbones import deberta_v1, deberta_v1_settings

pytestmark = pytest.mark.filterwarnings("ignore")

LONGEST = 150
VOCABULARY = 211


def config(**switches: Any) -> DebertaConfig:
    """The configuration of deberta-base with fewer distances, so that texts reach beyond them."""
    v1 = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 128,
        "max_position_embeddings": 160,
        "max_relative_positions": 40,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "pad_token_id": 0,
    }
    return DebertaConfig(**{**v1, **switches})


SWITCHES: dict[str, dict[str, Any]] = {
    "v1": {},
    "as many distances as positions": {"max_relative_positions": -1},
    "c2p": {"pos_att_type": "c2p"},
    "p2c": {"pos_att_type": ["p2c"]},
    "no position terms": {"pos_att_type": []},
    "no relative attention": {"relative_attention": False},
    "all of the input's": {"position_biased_input": True, "type_vocab_size": 2, "embedding_size": 32},
    "coarse norms": {"layer_norm_eps": 1e-2},
}


def pair(switches: dict[str, Any], build: Any, draw: Any) -> tuple[Any, DebertaModel]:
    reference = draw(DebertaModel(config(**switches)))
    encoder = build(deberta_v1.DebertaV1Encoder, reference.config)
    encoder.load(reference.state_dict(), deberta_v1_settings.layout(reference.config))
    return encoder, reference


@pytest.mark.parametrize("count", [1, 17])
def test_a_packed_batch_gives_the_rows_of_transformers(
    count: int, build: Any, draw: Any, batches: Any, compare: Callable[..., float], record_property: Any
) -> None:
    encoder, reference = pair({}, build, draw)
    difference = compare(encoder, reference, batches(count, LONGEST, VOCABULARY), padding=29)
    record_property("worst", difference)
    assert difference <= 2e-5


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES.keys())
def test_every_switch_is_honoured(switches: dict[str, Any], build: Any, draw: Any, batches: Any, compare: Any) -> None:
    encoder, reference = pair(switches, build, draw)
    assert compare(encoder, reference, batches(5, LONGEST, VOCABULARY)) <= 2e-5


def test_texts_longer_than_the_position_table_are_as_in_transformers(
    build: Any, draw: Any, batches: Any, compare: Any
) -> None:
    encoder, reference = pair({"max_position_embeddings": 64, "max_relative_positions": -1}, build, draw)
    # transformers counts on from its buffer's end, and adds nothing of it
    reference.embeddings.position_ids = torch.zeros(1, LONGEST, dtype=torch.int64)
    assert compare(encoder, reference, batches(3, LONGEST, VOCABULARY)) <= 2e-5


def test_layers_that_wait_until_all_of_them_has_come_are_loaded_whole(
    build: Any, draw: Any, batches: Any, compare: Any
) -> None:
    # as layers do that vLLM quantises while it loads: each keeps what comes, and is filled with all of it at once
    reference = draw(DebertaModel(config()))
    encoder = build(deberta_v1.DebertaV1Encoder, reference.config)
    layers = [module for module in encoder.module.modules() if isinstance(module, LinearBase)]
    for layer in layers:
        for parameter in layer.parameters(recurse=False):
            parameter.data.fill_(torch.nan)
        layerwise.initialize_online_processing(layer)
    encoder.load(reference.state_dict(), deberta_v1_settings.layout(reference.config))
    assert [layerwise.get_layerwise_info(layer).can_load() for layer in layers] == [False] * len(layers)
    assert compare(encoder, reference, batches(5, LONGEST, VOCABULARY)) <= 2e-5


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES.keys())
def test_the_layout_is_that_of_transformers(switches: dict[str, Any]) -> None:
    with torch.device("meta"):
        reference = DebertaModel(config(**switches))
    expected = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    assert dict(deberta_v1_settings.layout(reference.config).shapes) == expected


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"talking_head": True}, "talking_head"),
        ({"pos_att_type": ["p2p"]}, "pos_att_type"),
        ({"hidden_act": "none"}, "hidden_act"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
    ],
)
def test_what_is_not_computed_is_refused_by_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedConfig, match=f"deberta: {named}="):
        deberta_v1_settings.Settings.read({**deberta_v1_settings.DEFAULTS, "relative_attention": True, **fields})
