"""One of the processes of a tensor-parallel group: `rank.py RANKS RANK PORT`. Writes each encoder's error as JSON."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any


def sibling(name: str) -> Any:
    """Import a file beside this one; tests are no package."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"backbones_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(ranks: int, rank: int, port: int) -> dict[str, float]:
    """Compare each encoder with transformers, split over ``ranks`` processes."""
    from transformers import (
        BertConfig,
        BertModel,
        DebertaV2Config,
        DebertaV2Model,
        Gemma3TextConfig,
        Gemma3TextModel,
        Lfm2Config,
        Lfm2Model,
        ModernBertConfig,
        ModernBertModel,
        MT5Config,
        T5EncoderModel,
    )

    from encoder_plugins.backbones import (
        deberta_v2,
        deberta_v2_settings,
        gemma3,
        gemma3_settings,
        lfm2,
        lfm2_settings,
        modernbert,
        modernbert_settings,
        mt5,
        mt5_settings,
        post_norm,
        post_norm_settings,
    )

    tools = sibling("conftest")
    tools.join_group(ranks, rank, port)
    sizes = {"vocab_size": 211, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 96, "max_position_embeddings": 160}
    relative = {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 16, "type_vocab_size": 0}
    relative |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False}
    tokens = {name: 1 for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")}
    # the encoder, and what gives the layout of its checkpoint
    models: dict[str, tuple[Any, Any, Any]] = {
        "bert": (BertModel(BertConfig(**sizes)), post_norm.BertEncoder, post_norm_settings.bert_layout),
        "deberta_v2": (
            DebertaV2Model(DebertaV2Config(**sizes, **relative, share_att_key=True)),
            deberta_v2.DebertaV2Encoder,
            deberta_v2_settings.layout,
        ),
        "deberta_v2 with own projections": (
            DebertaV2Model(DebertaV2Config(**sizes, **relative, share_att_key=False)),
            deberta_v2.DebertaV2Encoder,
            deberta_v2_settings.layout,
        ),
        "modernbert": (
            ModernBertModel(ModernBertConfig(**sizes, **tokens, pad_token_id=0, local_attention=32)),
            modernbert.ModernBertEncoder,
            modernbert_settings.layout,
        ),
        # one head of keys, which both ranks need
        "gemma3": (
            Gemma3TextModel(
                Gemma3TextConfig(
                    **{**sizes, "num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 32},
                    sliding_window=32,
                    use_bidirectional_attention=True,
                )
            ),
            gemma3.Gemma3Encoder,
            gemma3_settings.layout,
        ),
        # the channels of convolutions are split, too
        "lfm2": (
            Lfm2Model(
                Lfm2Config(
                    **{**sizes, "num_hidden_layers": 3, "num_key_value_heads": 2},
                    layer_types=["conv", "full_attention", "conv"],
                    conv_bias=True,
                )
            ),
            lfm2.Lfm2Encoder,
            lfm2_settings.layout,
        ),
        "mt5": (
            T5EncoderModel(MT5Config(vocab_size=211, d_model=128, d_kv=32, d_ff=96, num_layers=2, num_heads=4)),
            mt5.Mt5Encoder,
            mt5_settings.layout,
        ),
    }
    errors = {}
    for name, (reference, encoder_class, layout) in models.items():
        tools.randomize(reference)
        for parameter_name, parameter in reference.named_parameters():
            if parameter_name.endswith("SelfAttention.q.weight"):
                parameter.data *= 0.25
        encoder = tools.make(encoder_class, reference.config)
        encoder.load(reference.state_dict(), layout(reference.config))
        errors[name] = tools.worst(encoder, reference, tools.texts(5, 60, 211))
    return errors


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = main(*map(int, sys.argv[1:]))
    sys.stdout.write("\n" + json.dumps(found) + "\n")
