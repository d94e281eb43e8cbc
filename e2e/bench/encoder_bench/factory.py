"""vllm-factory 0.2.1 as a peer: its plugin for the same checkpoint, with what it needs to answer on vLLM 0.32.

It is installed by the user who runs the comparison (`pip install --no-deps --target FOLDER vllm-factory==0.2.1`), and is in no image
of ours. Its own preparation downloads by name and writes a wrong shape for DeBERTa; the configuration is written here from
the same artifact that we serve, so that both run the same weights.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_plugins.artifact import manifest
from encoder_plugins.families.gliner.config import KEY, GlinerConfig

PACKAGES = ("forge", "kernels", "models", "plugins", "poolers", "vllm_factory")


@dataclass(frozen=True, slots=True)
class Patch:
    """One changed place of a file."""

    path: str
    before: str
    after: str
    why: str


PATCHES: tuple[Patch, ...] = (
    Patch(
        "vllm_factory/pooling/vllm_adapter.py",
        "prompt_token_ids = pm.get_prompt_token_ids()",
        "prompt_token_ids = pm.get_prompt_token_ids_cpu()",
        "vLLM 0.32 keeps token ids on the host, and its old call kills the engine at the first request",
    ),
    Patch(
        "models/modernbert/modernbert_encoder.py",
        "conf_global.rope_theta = config.global_rope_theta",
        "conf_global.layer_types, conf_global.rope_parameters = ['full_attention'], "
        "{'full_attention': {'rope_type': 'default', 'rope_theta': config.global_rope_theta}}",
        "transformers 5 reads RoPE's base by layer type",
    ),
    Patch(
        "models/modernbert/modernbert_encoder.py",
        "conf_local.rope_theta = config.local_rope_theta",
        "conf_local.layer_types, conf_local.rope_parameters = ['full_attention'], "
        "{'full_attention': {'rope_type': 'default', 'rope_theta': config.local_rope_theta}}",
        "transformers 5 reads RoPE's base by layer type",
    ),
    Patch(
        "models/modernbert/modernbert_encoder.py",
        "self.rotary_emb(v, position_ids=position_ids)",
        "self.rotary_emb(v, position_ids=position_ids, layer_type='full_attention')",
        "and wants the layer type where it is applied",
    ),
    Patch(
        "plugins/modernbert_gliner_rerank/model.py",
        'delattr(cfg, "rope_parameters")',
        "cfg.global_rope_theta, cfg.local_rope_theta = "
        '(rp[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")); delattr(cfg, "rope_parameters")',
        "and keeps RoPE's bases nowhere else, so that they are gone with this",
    ),
)

MODEL: Mapping[str, Mapping[str, str]] = {
    "deberta_gliner": {"model_type": "gliner_deberta_v2", "architecture": "GLiNERDebertaV2Model"},
    "mmbert_gliner": {"model_type": "gliner_mmbert", "architecture": "GLiNERModernBertModel"},
    "mt5_gliner": {"model_type": "gliner_mt5", "architecture": "GLiNERMT5Model"},
}


def install(site: Path, folder: Path) -> Path:
    """Copy the package from where pip put it, with the patches in it; return the folder for PYTHONPATH.

    Raises:
        ValueError: A patch does not fit: this is another version.
    """
    target = folder / "site"
    for name in PACKAGES:
        shutil.copytree(site / name, target / name)
    for information in site.glob("vllm_factory-*.dist-info"):
        shutil.copytree(information, target / information.name)
    for patch in PATCHES:
        file = target / patch.path
        text = file.read_text(encoding="utf-8")
        if patch.before not in text:
            raise ValueError(f"{patch.path} does not hold {patch.before!r}: this is not vllm-factory 0.2.1")
        file.write_text(text.replace(patch.before, patch.after), encoding="utf-8")
    return target


def prepare(source: Path, folder: Path, plugin: str) -> Path:
    """Write a model directory as its plugin reads it, from an artifact of ours."""
    model = source / manifest.MODEL
    encoder = json.loads((model / "config.json").read_text(encoding="utf-8"))
    head = GlinerConfig.from_dict(encoder[KEY])
    folder.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        if path.name != "config.json":
            (folder / path.name).symlink_to(path)
    (folder / "config.json").write_text(json.dumps(_config(plugin, encoder, head), indent=2), encoding="utf-8")
    return folder


def _config(plugin: str, encoder: Mapping[str, Any], head: GlinerConfig) -> dict[str, Any]:
    width = encoder.get("hidden_size", encoder.get("d_model"))
    common = {
        "model_type": MODEL[plugin]["model_type"],
        "architectures": [MODEL[plugin]["architecture"]],
        "num_hidden_layers": 0,
        "num_attention_heads": 1,
        "hidden_size": width,
        "vocab_size": encoder["vocab_size"],
        "max_position_embeddings": encoder.get("max_position_embeddings", 8192),
        "gliner_hidden_size": head.hidden_size,
        "max_width": head.max_width,
        "max_len": head.max_words,
        "class_token_index": head.class_token_id,
        "sep_token_index": head.separator_token_id,
        "ent_token": head.class_token,
        "sep_token": head.separator_token,
        "has_rnn": head.lstm_layers > 0,
        "embed_ent_token": head.embed_class_token,
        "pad_token_id": encoder.get("pad_token_id", 0),
    }
    if plugin == "deberta_gliner":
        names = (
            *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
            *("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "relative_attention"),
            *("max_relative_positions", "position_buckets", "pos_att_type", "share_att_key", "norm_rel_ebd"),
            *("position_biased_input", "pad_token_id"),
        )
        return common | {f"encoder_{name}": encoder[name] for name in names if name in encoder}
    if plugin == "mmbert_gliner":
        return common | {
            "encoder_num_layers": encoder["num_hidden_layers"],
            "encoder_num_attention_heads": encoder["num_attention_heads"],
            "intermediate_size": encoder["intermediate_size"],
            "local_attention": encoder["local_attention"],
            "global_attn_every_n_layers": encoder.get("global_attn_every_n_layers", 3),
            "global_rope_theta": _theta(encoder, "global"),
            "local_rope_theta": _theta(encoder, "local"),
            "norm_eps": encoder["norm_eps"],
        }
    fields = (
        *("d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_num_buckets"),
        *("relative_attention_max_distance", "layer_norm_epsilon", "feed_forward_proj"),
    )
    return common | {name: encoder[name] for name in fields}


def _theta(encoder: Mapping[str, Any], kind: str) -> float:
    """Return a RoPE base, of whichever form a ModernBERT configuration has."""
    if f"{kind}_rope_theta" in encoder:
        return float(encoder[f"{kind}_rope_theta"])
    layer = {"global": "full_attention", "local": "sliding_attention"}[kind]
    return float(encoder["rope_parameters"][layer]["rope_theta"])


def command(model: Path, plugin: str, port: int, *arguments: str) -> list[str]:
    """Return the command line of its server, as its own documentation has it."""
    return [
        *(sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(model)),
        *("--served-model-name", "bench", "--port", str(port), "--runner", "pooling", "--trust-remote-code"),
        *("--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--io-processor-plugin", f"{plugin}_io"),
        *("--disable-uvicorn-access-log", *arguments),
    ]


def environment(site: Path, plugin: str) -> dict[str, str]:
    """Return what its server needs in its environment: only its own plugins, and the model runner that knows its task."""
    return {
        "PYTHONPATH": str(site),
        "VLLM_PLUGINS": f"{plugin},{plugin}_io",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # that runner builds a sampler, for which vLLM looks for another library
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
