"""DeBERTa v2 and v3 against transformers, switch by switch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import DebertaV2Config, DebertaV2Model

    from encoder_plugins import catalog
    from encoder_plugins.backbones import deberta_v2, deberta_v2_settings
    from encoder_plugins.backbones.adapter_tables import DebertaV2Adapters

pytestmark = pytest.mark.filterwarnings("ignore")

LONGEST = 150
VOCABULARY = 211


def config(**switches: Any) -> DebertaV2Config:
    """A v3 configuration with small buckets, so that short texts reach the logarithmic ones."""
    v3 = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 96,
        "max_position_embeddings": 160,
        "max_relative_positions": -1,
        "position_buckets": 16,
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "pad_token_id": 0,
    }
    return DebertaV2Config(**{**v3, **switches})


SWITCHES: dict[str, dict[str, Any]] = {
    "v3": {},
    "own position projections": {"share_att_key": False},
    "own position projections, c2p": {"share_att_key": False, "pos_att_type": ["c2p"]},
    "own position projections, p2c": {"share_att_key": False, "pos_att_type": "p2c"},
    "c2p": {"pos_att_type": "c2p"},
    "p2c": {"pos_att_type": ["p2c"]},
    "no position terms": {"pos_att_type": []},
    "no relative attention": {"relative_attention": False},
    "no norm of relative embeddings": {"norm_rel_ebd": "none"},
    "linear distances": {"position_buckets": -1, "max_relative_positions": 40},
    "buckets that end early": {"max_relative_positions": 60},
    "absolute positions": {"position_biased_input": True},
    "token types": {"type_vocab_size": 3},
    "narrow vocabulary": {"embedding_size": 32},
    "all of the input's": {"position_biased_input": True, "type_vocab_size": 2, "embedding_size": 32},
    "another activation": {"hidden_act": "gelu_new"},
    "coarse norms": {"layer_norm_eps": 1e-2},
}


def pair(switches: dict[str, Any], build: Any, draw: Any) -> tuple[Any, DebertaV2Model]:
    reference = draw(DebertaV2Model(config(**switches)))
    encoder = build(deberta_v2.DebertaV2Encoder, reference.config)
    encoder.load(reference.state_dict(), deberta_v2_settings.layout(reference.config))
    return encoder, reference


@pytest.mark.parametrize("count", [1, 2, 17, 64])
def test_a_packed_batch_gives_the_rows_of_transformers(
    count: int, build: Any, draw: Any, batches: Any, compare: Callable[..., float], record_property: Any
) -> None:
    encoder, reference = pair({}, build, draw)
    difference = compare(encoder, reference, batches(count, LONGEST, VOCABULARY))
    record_property("worst", difference)
    assert difference <= 2e-5


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES.keys())
def test_every_switch_is_honoured(switches: dict[str, Any], build: Any, draw: Any, batches: Any, compare: Any) -> None:
    encoder, reference = pair(switches, build, draw)
    assert compare(encoder, reference, batches(5, LONGEST, VOCABULARY)) <= 2e-5


def test_rows_of_padding_change_nothing(build: Any, draw: Any, batches: Any, compare: Any) -> None:
    encoder, reference = pair({}, build, draw)
    assert compare(encoder, reference, batches(3, LONGEST, VOCABULARY), padding=29) <= 2e-5


def test_texts_longer_than_the_position_table_are_as_in_transformers(
    build: Any, draw: Any, batches: Any, compare: Any
) -> None:
    encoder, reference = pair({"max_position_embeddings": 64}, build, draw)
    assert compare(encoder, reference, batches(3, LONGEST, VOCABULARY)) <= 2e-5


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES.keys())
def test_the_layout_is_that_of_transformers(switches: dict[str, Any]) -> None:
    with torch.device("meta"):
        reference = DebertaV2Model(config(**switches))
    expected = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    assert dict(deberta_v2_settings.layout(reference.config).shapes) == expected


@pytest.mark.parametrize(
    ("name", "parameter", "part"),
    [
        ("embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight", None),
        ("embeddings.LayerNorm.bias", "embeddings.LayerNorm.bias", None),
        ("embeddings.embed_proj.weight", "embeddings.embed_proj.weight", None),
        ("encoder.rel_embeddings.weight", "relative.embeddings.weight", None),
        ("encoder.LayerNorm.weight", "relative.LayerNorm.weight", None),
        ("encoder.layer.11.attention.self.query_proj.weight", "layers.11.attention.qkv_proj.weight", "q"),
        ("encoder.layer.0.attention.self.key_proj.bias", "layers.0.attention.qkv_proj.bias", "k"),
        ("encoder.layer.0.attention.self.value_proj.weight", "layers.0.attention.qkv_proj.weight", "v"),
        ("encoder.layer.0.attention.self.pos_key_proj.bias", "layers.0.attention.pos_key_proj.bias", None),
        ("encoder.layer.3.attention.output.dense.weight", "layers.3.attention.dense.weight", None),
        ("encoder.layer.3.attention.output.LayerNorm.bias", "layers.3.attention.LayerNorm.bias", None),
        ("encoder.layer.3.intermediate.dense.weight", "layers.3.intermediate.weight", None),
        ("encoder.layer.3.output.dense.bias", "layers.3.output.bias", None),
        ("encoder.layer.3.output.LayerNorm.weight", "layers.3.LayerNorm.weight", None),
    ],
)
def test_the_slot_of_a_tensor(name: str, parameter: str, part: str | None) -> None:
    assert deberta_v2_settings.slot(name) == (parameter, part)


@pytest.mark.parametrize("plugin", ["", "deberta_gliner", "deberta_gliner2"])
@pytest.mark.parametrize("shared", [True, False])
def test_every_layer_of_an_adapter_has_its_name_in_the_engine(plugin: str, shared: bool) -> None:
    """The names that the library's model has, PEFT's prefix apart; vLLM passes over a layer that it does not find."""
    layout = deberta_v2_settings.layout(config(share_att_key=shared))
    packed: dict[Any, str] = dict(zip("qkv", DebertaV2Adapters.packed_modules_mapping["qkv_proj"], strict=True))
    names = [name for name, shape in layout.shapes.items() if name.startswith("encoder.layer.") and len(shape) == 2]
    assert len(names) == 2 * (6 if shared else 8)
    adapted = catalog.get(plugin).adapted[0].removesuffix("encoder.layer.") if plugin else ""
    for name in names:
        parameter, part = layout.slot(name)
        wanted = parameter if part is None else parameter.replace("qkv_proj", packed[part])
        assert DebertaV2Adapters.hf_to_vllm_mapper.map_name(adapted + name) == f"encoder.{wanted}"
