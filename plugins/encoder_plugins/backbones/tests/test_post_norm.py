"""BERT, XLM-RoBERTa, DistilBERT and MPNet against transformers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    # vLLM and transformers warn of themselves when they are imported
    warnings.simplefilter("ignore")
    from transformers import (
        BertConfig,
        BertModel,
        DistilBertConfig,
        DistilBertModel,
        MPNetConfig,
        MPNetModel,
        XLMRobertaConfig,
        XLMRobertaModel,
    )

    from encoder_plugins.backbones import post_norm
    from encoder_plugins.backbones.post_norm_settings import bert_layout, distilbert_layout, mpnet_layout

pytestmark = pytest.mark.filterwarnings("ignore")

LONGEST = 200
VOCABULARY = 211
DISTILBERT = {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 3, "n_heads": 2, "hidden_dim": 96}
MPNET = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
MPNET |= {"intermediate_size": 96}
XLM_ROBERTA = {**MPNET, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
# by name: what transformers and we build, and the first token id that is not its padding
MODELS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "bert": (BertModel, BertConfig, post_norm.BertEncoder, MPNET),
    "xlm-roberta": (XLMRobertaModel, XLMRobertaConfig, post_norm.BertEncoder, XLM_ROBERTA),
    "distilbert": (DistilBertModel, DistilBertConfig, post_norm.DistilBertEncoder, DISTILBERT),
    "mpnet": (MPNetModel, MPNetConfig, post_norm.MPNetEncoder, MPNET),
}
LAYOUTS = {"bert": bert_layout, "xlm-roberta": bert_layout, "distilbert": distilbert_layout, "mpnet": mpnet_layout}
SWITCHES: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("bert", {"hidden_act": "gelu_new", "type_vocab_size": 1, "layer_norm_eps": 1e-2}),
    ("xlm-roberta", {}),
    ("distilbert", {}),
    ("distilbert", {"activation": "relu"}),
    ("distilbert", {"sinusoidal_pos_embds": True}),
    ("mpnet", {}),
    ("mpnet", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2}),
]


@pytest.mark.parametrize(("name", "switches"), SWITCHES, ids=str)
def test_a_packed_batch_gives_the_rows_of_transformers(
    name: str,
    switches: dict[str, Any],
    our_attention: bool,
    build: Any,
    draw: Any,
    batches: Any,
    compare: Any,
    record_property: Any,
) -> None:
    reference_class, config_class, encoder_class, sizes = MODELS[name]
    reference = draw(reference_class(config_class(**sizes, **switches)))
    encoder = build(encoder_class, reference.config)
    encoder.load(reference.state_dict(), LAYOUTS[name](reference.config))
    # 1 is the padding of MPNet and XLM-RoBERTa, which transformers does not count as a position
    batch = [ids.clamp(min=2) for ids in batches(9, LONGEST, VOCABULARY)]
    worst = max(compare(encoder, reference, batch), compare(encoder, reference, batch[:1], padding=5))
    record_property("worst", worst)
    assert worst <= 2e-5


@pytest.mark.parametrize("name", MODELS)
def test_the_layout_is_that_of_transformers(name: str) -> None:
    reference_class, config_class, _, sizes = MODELS[name]
    with torch.device("meta"):
        reference = reference_class(config_class(**sizes))
    layout = LAYOUTS[name](reference.config)
    expected = {key: tuple(tensor.shape) for key, tensor in reference.state_dict().items()}
    assert {key: shape for key, shape in expected.items() if key not in layout.ignored} == dict(layout.shapes)


@pytest.mark.parametrize(
    ("name", "tensor", "parameter", "part"),
    [
        ("distilbert", "embeddings.LayerNorm.bias", "embeddings.LayerNorm.bias", None),
        ("distilbert", "transformer.layer.11.attention.k_lin.bias", "layers.11.qkv_proj.bias", "k"),
        ("distilbert", "transformer.layer.0.sa_layer_norm.weight", "layers.0.attention_norm.weight", None),
        ("mpnet", "encoder.relative_attention_bias.weight", "relative.embeddings.weight", None),
        ("mpnet", "encoder.layer.3.attention.attn.v.weight", "layers.3.qkv_proj.weight", "v"),
        ("mpnet", "encoder.layer.3.output.LayerNorm.weight", "layers.3.output_norm.weight", None),
    ],
)
def test_the_slot_of_a_tensor(name: str, tensor: str, parameter: str, part: str | None) -> None:
    assert LAYOUTS[name]({}).slot(tensor) == (parameter, part)
