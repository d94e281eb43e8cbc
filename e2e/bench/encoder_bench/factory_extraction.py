"""vllm-factory 0.2.1 as a side of the comparisons of GLiNER2, linking and reranking; ``factory`` has its installation.

Its plugins for linking and reranking import gliner and load their checkpoint by a fixed name: gliner goes into the same folder (`pip install
--no-deps --target FOLDER vllm-factory==0.2.1 gliner==0.2.29`), and the name is replaced by the folder of the checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from encoder_bench import factory, server
from encoder_node.free_port import free_port

NAME = "vllm-factory, HTTP"
# what is there once for both plugins of gliner
_FIXED = {
    "deberta_gliner_linker": '"knowledgator/gliner-linker-large-v1.0"',
    "modernbert_gliner_rerank": '"knowledgator/gliner-linker-rerank-v1.0"',
}
_ENCODER = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "relative_attention", "max_relative_positions"),
    *("position_buckets", "pos_att_type", "share_att_key", "norm_rel_ebd", "position_biased_input", "pad_token_id"),
)
# of a ModernBERT configuration, what its class for rerankers does not take
_DROPPED = {"model_type", "architectures", "dtype", "torch_dtype", "transformers_version"}


def config(plugin: str, source: Path) -> dict[str, Any]:
    """Return the configuration that its plugin reads, from a checkpoint as published.

    Raises:
        ValueError: It has no class for the plugin's checkpoints.
    """
    if plugin == "deberta_gliner2":
        encoder, head = _json(source / "encoder_config/config.json"), _json(source / "config.json")
        return {
            **_encoder("gliner2", "GLiNER2VLLMModel", encoder),
            **{name: head[name] for name in ("max_width", "counting_layer", "token_pooling") if name in head},
        }
    if plugin == "deberta_gliner_linker":
        return _encoder("gliner_linker", "GLiNERLinkerModel", _json(source / "gliner_config.json")["encoder_config"])
    if plugin == "modernbert_gliner_rerank":
        head = _json(source / "gliner_config.json")
        return {
            **{name: value for name, value in head["encoder_config"].items() if name not in _DROPPED},
            "model_type": "modernbert_gliner_rerank",
            "architectures": ["GLiNERRerankModel"],
            "class_token_index": head["class_token_index"],
            "embed_ent_token": head.get("embed_ent_token", True),
            "gliner_hidden_size": head["hidden_size"],
            "gliner_max_len": head.get("max_len", 2048),
        }
    raise ValueError(f"{NAME} has no class for {plugin}")


def _encoder(model_type: str, architecture: str, encoder: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "hidden_size": encoder["hidden_size"],
        "vocab_size": encoder["vocab_size"],
        # its own field for what vLLM calls the longest sequence
        "max_position_embeddings": encoder.get("max_position_embeddings", 512),
        **{f"encoder_{name}": encoder[name] for name in _ENCODER if name in encoder},
    }


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def prepare(plugin: str, source: Path, folder: Path) -> Path:
    """Write a model directory as its plugin reads it: the published files under another configuration."""
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.name != "config.json":
            (folder / path.name).symlink_to(path)
    (folder / "config.json").write_text(json.dumps(config(plugin, source), indent=2), encoding="utf-8")
    return folder


def install(plugin: str, given: argparse.Namespace, logs: Path) -> Path:
    """Install it with its patches; return the folder for PYTHONPATH.

    Raises:
        ValueError: ``--factory-site`` is not given, or has another version, or lacks gliner where the plugin needs it.
    """
    if given.factory_site is None:
        raise ValueError("--factory-site must be where pip put vllm-factory 0.2.1")
    site = factory.install(given.factory_site, logs / "factory")
    if (fixed := _FIXED.get(plugin)) is not None:
        gliner = given.factory_site / "gliner"
        if not gliner.is_dir():
            raise ValueError(f"--factory-site must hold gliner 0.2.29, too: the plugin for {plugin} imports it")
        shutil.copytree(gliner, site / "gliner")
        file = site / "plugins" / plugin / "io_processor.py"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(fixed, repr(str(given.source))), encoding="utf-8")
    return site


@contextlib.contextmanager
def served(given: argparse.Namespace, plugin: str, logs: Path) -> Iterator[server.Server]:
    """Serve a checkpoint by its plugin, with the settings of its own documentation.

    Raises:
        ValueError: It has no class for these checkpoints, or is not installed.
        RuntimeError: It did not start; the message has the end of its log.
    """
    model = prepare(plugin, given.source, logs / "factory-model")
    site = install(plugin, given, logs)
    port = free_port()
    arguments = ["--dtype", given.dtype]
    if given.memory_share:
        arguments += ["--gpu-memory-utilization", str(given.memory_share)]
    environment = factory.environment(site, plugin) | {"VLLM_CACHE_ROOT": str(logs / "cache-factory")}
    environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    if given.device == "cpu":
        arguments.append("--enforce-eager")
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = factory.command(model, plugin, port, *arguments)
    with server.command(command, f"http://127.0.0.1:{port}", logs / "factory.log", environment) as at:
        yield at


def one_by_one(ways: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return ways with one text a request, which is all that it takes, and as many texts at the same time."""
    return ((clients * number, 1) for clients, number in ways)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the argument of this side."""
    parser.add_argument("--factory-site", type=Path, help="where pip put vllm-factory==0.2.1 (--target)")
