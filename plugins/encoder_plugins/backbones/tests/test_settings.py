"""The configuration readers: by field, from the JSON of a checkpoint as from transformers' own object, and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.backbones import (
    config_checks,
    deberta_v2_settings,
    gemma3_settings,
    lfm2_settings,
    modernbert_settings,
    mt5_settings,
    post_norm_settings,
)
from encoder_plugins.backbones.config_checks import UnsupportedConfig, check_head_size, head_size
from encoder_plugins.errors import NotServable, Unsupported

READERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bert": (post_norm_settings.read_bert, post_norm_settings.bert_layout),
    "deberta-v2": (deberta_v2_settings.Settings.read, deberta_v2_settings.layout),
    "modernbert": (modernbert_settings.Settings.read, modernbert_settings.layout),
    "gemma3_text": (gemma3_settings.Settings.read, gemma3_settings.layout),
    "lfm2": (lfm2_settings.Settings.read, lfm2_settings.layout),
    "mt5": (mt5_settings.Settings.read, mt5_settings.layout),
    "distilbert": (post_norm_settings.read_distilbert, post_norm_settings.distilbert_layout),
    "mpnet": (post_norm_settings.read_mpnet, post_norm_settings.mpnet_layout),
}


def config_class(model_type: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import CONFIG_MAPPING

        return CONFIG_MAPPING[model_type]


def test_readers_and_layouts_import_neither_vllm_nor_torch() -> None:
    layouts = [f"{layout.__module__}.{layout.__name__}" for _, layout in READERS.values()]
    names = [layout.rpartition(".")[0] for layout in layouts]
    names += ["encoder_plugins.backbones.config_checks", "encoder_plugins.families.gliner.heads.layout"]
    code = (
        f"import sys, {', '.join(names)}\n"
        f"for layout in ({', '.join(layouts)}): layout({{}})\n"
        "sys.exit(str({'vllm', 'torch', 'numpy', 'transformers', 'safetensors', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize("model_type", READERS)
def test_an_absent_field_has_the_default_of_transformers(model_type: str) -> None:
    read, _ = READERS[model_type]
    assert read({}) == read(config_class(model_type)())


# what a config.json may say instead of the defaults, and be read alike
WRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("deberta-v2", {"pos_att_type": "p2c|c2p", "relative_attention": True, "position_buckets": 256}),
    ("deberta-v2", {"pos_att_type": ["c2p"], "relative_attention": True, "share_att_key": True}),
    ("deberta-v2", {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "embedding_size": 32}),
    ("modernbert", {"global_rope_theta": 160000, "local_rope_theta": 5.0}),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_theta": 3.0}}}),
    (
        "modernbert",
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 160000, "rope_type": "default"},
            },
            "global_rope_theta": 5.0,
        },
    ),
    ("modernbert", {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}),
    ("modernbert", {"global_attn_every_n_layers": 4, "local_attention": 7}),
    # as embeddinggemma-300m writes it
    (
        "gemma3_text",
        {
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "rope_local_base_freq": 5000.0,
            "rope_scaling": None,
            "rope_theta": 500000.0,
            "sliding_window": 512,
            "use_bidirectional_attention": True,
        },
    ),
    # as transformers writes it where all layers are of one kind
    (
        "gemma3_text",
        {
            "layer_types": ["full_attention"] * 2,
            "num_hidden_layers": 2,
            "rope_parameters": {
                "full_attention": {"rope_theta": 3.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 5.0, "rope_type": "default"},
                "rope_theta": None,
                "rope_type": "default",
            },
        },
    ),
    ("gemma3_text", {"sliding_window": 65, "num_hidden_layers": 7, "sliding_window_pattern": 3}),
    ("gemma3_text", {"sliding_window": 65, "use_bidirectional_attention": True, "query_pre_attn_scalar": 100}),
    ("bert", {"layer_norm_eps": 1e-5, "type_vocab_size": 1, "hidden_act": "gelu_new"}),
    # fields of LFM2-350M's own config.json, some of which transformers reads under other names
    (
        "lfm2",
        {
            "hidden_size": 1024,
            "block_ff_dim": 6656,
            "intermediate_size": 1,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "rope_theta": 10_000.0,
        },
    ),
    ("lfm2", {"block_auto_adjust_ff_dim": False, "conv_bias": True, "conv_L_cache": 4}),
    ("mt5", {"d_model": 1024, "num_heads": 16, "relative_attention_max_distance": 200}),
    ("distilbert", {"dim": 64, "n_heads": 2, "activation": "relu", "max_position_embeddings": 64}),
    ("distilbert", {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3, "hidden_dim": 96}),
    ("mpnet", {"hidden_size": 64, "num_attention_heads": 2, "layer_norm_eps": 1e-5, "max_position_embeddings": 514}),
    ("mt5", {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 3, "head_dim": 80}),
]


@pytest.mark.parametrize(("model_type", "written"), WRITTEN, ids=str)
def test_the_json_is_read_like_the_object_of_transformers(
    model_type: str, written: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **written}))
    read, _ = READERS[model_type]
    loaded = config_class(model_type).from_pretrained(tmp_path)
    assert read({"model_type": model_type, **written}) == read(loaded)
    assert read(written) != read({})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, (160000.0, 10000.0)),
        ({"local_rope_theta": 5.0}, (160000.0, 5.0)),
        ({"rope_parameters": {"full_attention": {"rope_theta": 3.0}}, "global_rope_theta": 4.0}, (3.0, 10000.0)),
    ],
    ids=str,
)
def test_both_forms_of_rotary_bases(written: dict[str, Any], expected: tuple[float, float]) -> None:
    thetas = modernbert_settings.Settings.read(written).thetas
    assert (thetas["full_attention"], thetas["sliding_attention"]) == expected


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {kind: {"rope_theta": 1e4, **parameters}}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size=3"),
    ("deberta-v2", {"pos_att_type": ["c2p", "p2p"]}, "pos_att_type=['c2p', 'p2p']"),
    ("deberta-v2", {"pos_att_type": [1]}, "pos_att_type=[1]"),
    ("deberta-v2", {"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd='batch_norm'"),
    ("deberta-v2", {"hidden_act": "mish"}, "hidden_act='mish'"),
    ("deberta-v2", {"num_attention_heads": 7}, "num_attention_heads=7"),
    ("deberta-v2", {"num_attention_heads": "24"}, "num_attention_heads='24'"),
    ("deberta-v2", {"attention_head_size": 32}, "attention_head_size=32"),
    ("deberta-v2", {"hidden_size": None}, "hidden_size=None"),
    ("deberta-v2", {"num_hidden_layers": True}, "num_hidden_layers=True"),
    ("deberta-v2", {"vocab_size": 0}, "vocab_size=0"),
    ("deberta-v2", {"layer_norm_eps": "1e-7"}, "layer_norm_eps='1e-7'"),
    ("deberta-v2", {"layer_norm_eps": float("nan")}, "layer_norm_eps=nan"),
    ("deberta-v2", {"relative_attention": 1}, "relative_attention=1"),
    ("deberta-v2", {"relative_attention": True, "position_buckets": 64, "max_position_embeddings": 33}, "=64"),
    ("deberta-v2", {"relative_attention": True, "position_buckets": 64, "max_relative_positions": 33}, "=64"),
    ("deberta-v2", {"relative_attention": True, "position_buckets": 1}, "position_buckets=1"),
    ("modernbert", {"hidden_activation": "relu"}, "hidden_activation='relu'"),
    ("modernbert", {"num_attention_heads": 7}, "num_attention_heads=7"),
    ("modernbert", {"num_attention_heads": 256}, "num_attention_heads=256"),
    ("modernbert", {"intermediate_size": "1152"}, "intermediate_size='1152'"),
    ("modernbert", {"local_attention": 0}, "local_attention=0"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types=['full_attention']"),
    ("modernbert", {"num_hidden_layers": 1, "layer_types": ["chunked_attention"]}, "layer_types="),
    ("modernbert", {"num_hidden_layers": 1, "layer_types": 1}, "layer_types=1"),
    ("modernbert", {"num_hidden_layers": 1, "layer_types": [["full_attention"]]}, "layer_types="),
    ("modernbert", {"global_rope_theta": "1e4"}, "global_rope_theta='1e4'"),
    ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling={'rope_type': 'linear'"),
    ("modernbert", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("modernbert", rope("full_attention", rope_type="linear", factor=2.0), "rope_parameters={'full_attention'"),
    ("modernbert", rope("full_attention", rope_type="yarn"), "rope_parameters={'full_attention'"),
    ("modernbert", rope("full_attention", rope_type="default", factor=2.0), "rope_parameters={'full_attention'"),
    ("modernbert", rope("sliding_attention", type="linear"), "rope_parameters={'sliding_attention'"),
    ("modernbert", rope("sliding_attention", partial_rotary_factor=0.5), "rope_parameters={'sliding_attention'"),
    ("modernbert", rope("sliding_attention", rope_theta=0), "rope_parameters={'sliding_attention'"),
    ("modernbert", rope("chunked_attention"), "rope_parameters={'chunked_attention'"),
    ("modernbert", {"rope_parameters": "default"}, "rope_parameters='default'"),
    ("gemma3_text", {"hidden_activation": "gelu"}, "hidden_activation='gelu'"),
    ("gemma3_text", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
    ("gemma3_text", {"head_dim": 33}, "head_dim=33"),
    ("gemma3_text", {"sliding_window": None}, "sliding_window=None"),
    ("gemma3_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
    ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_scaling={'rope_type': 'linear'"),
    ("lfm2", {"layer_types": ["conv"] * 32}, "layer_types="),
    ("lfm2", {"layer_types": ["full_attention"]}, "layer_types="),
    ("lfm2", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}, "rope_parameters="),
    ("lfm2", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling="),
    ("lfm2", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
    ("lfm2", {"head_dim": 33}, "head_dim=33"),
    ("lfm2", {"conv_bias": "no"}, "conv_bias='no'"),
    ("lfm2", {"block_ffn_dim_multiplier": 0}, "block_ffn_dim_multiplier=0"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ("bert", {"is_decoder": True}, "is_decoder=True"),
    ("bert", {"hidden_act": "mish"}, "hidden_act='mish'"),
    ("bert", {"num_attention_heads": 5}, "num_attention_heads=5"),
    ("mt5", {"feed_forward_proj": "relu"}, "feed_forward_proj='relu'"),
    ("mt5", {"dense_act_fn": "relu"}, "dense_act_fn='relu'"),
    ("mt5", {"is_gated_act": False}, "is_gated_act=False"),
    ("mt5", {"is_decoder": True}, "is_decoder=True"),
    ("mt5", {"relative_attention_num_buckets": 31}, "relative_attention_num_buckets=31"),
    ("mt5", {"relative_attention_num_buckets": 2}, "relative_attention_num_buckets=2"),
    ("mt5", {"relative_attention_max_distance": 8}, "relative_attention_max_distance=8"),
    ("mt5", {"d_kv": 64.0}, "d_kv=64.0"),
    ("distilbert", {"n_heads": 5}, "n_heads=5"),
    ("distilbert", {"activation": "mish"}, "activation='mish'"),
    ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets=64"),
    ("mpnet", {"max_position_embeddings": 2}, "max_position_embeddings=2"),
]


@pytest.mark.parametrize(("model_type", "written", "named"), REFUSED, ids=str)
def test_a_field_that_cannot_be_served_is_refused_by_name_and_value(
    model_type: str, written: dict[str, Any], named: str
) -> None:
    for read in READERS[model_type]:
        with pytest.raises(UnsupportedConfig) as caught:
            read(written)
        assert f"{model_type}: " in str(caught.value)
        assert named in str(caught.value)
    assert issubclass(UnsupportedConfig, Unsupported)


def test_a_scaled_rope_is_refused_in_the_object_of_transformers_too() -> None:
    written = config_class("modernbert")(rope_scaling={"rope_type": "linear", "factor": 2.0})
    with pytest.raises(UnsupportedConfig, match="rope_parameters="):
        modernbert_settings.Settings.read(written)


def test_float16_is_refused_for_mt5_with_the_reason() -> None:
    with pytest.raises(UnsupportedConfig, match=r"dtype=float16.*65504.*bfloat16, float32"):
        mt5_settings.check_dtype("float16")
    mt5_settings.check_dtype("bfloat16")
    mt5_settings.check_dtype("float32")


@pytest.mark.filterwarnings("ignore")
def test_the_head_sizes_are_those_of_vllms_attention_on_the_cpu() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(config_checks.CPU_HEAD_SIZES) == CPUAttentionBackend.get_supported_head_sizes()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"hidden_size": 312, "num_attention_heads": 12}, 26),
        ({"d_model": 512, "num_heads": 8}, 64),
        ({"dim": 768, "n_heads": 12}, 64),
        ({"hidden_size": 768, "num_attention_heads": 12, "head_dim": 256}, 256),
        ({"model_type": "gemma3_text", "hidden_size": 640, "num_attention_heads": 4}, 256),
        ({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16}, 128),
    ],
    ids=str,
)
def test_the_head_size_of_a_configuration(written: dict[str, Any], expected: int) -> None:
    assert head_size(written) == expected


@pytest.mark.parametrize("written", [{}, {"hidden_size": 10, "num_attention_heads": 3}, {"head_dim": "64"}], ids=str)
def test_a_configuration_without_a_head_size_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedConfig):
        head_size(written)


def test_a_head_size_that_vllms_attention_lacks_is_not_servable_on_that_accelerator() -> None:
    with pytest.raises(NotServable, match=r"26 wide.*accelerator cpu supports 32, 64, .*, 512 only"):
        check_head_size(26, "cpu")
    check_head_size(26, "nvidia")
    check_head_size(64, "cpu")
