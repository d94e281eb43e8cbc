"""Other servers of retrievers, as sides of a comparison: vLLM's own classes, and vllm-factory 0.2.1.

Both read the checkpoint as it is published, and run with their own settings and none of our code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_bench import factory, server
from encoder_bench.retrieval_checkpoint import Kind
from encoder_node.free_port import free_port
from encoder_plugins.artifact import manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another server.

    Attributes:
        name: In the table.
        body: Makes the body of a request for some documents.
        most_texts: Of a request; None for any number.
    """

    name: str
    body: Callable[[Kind, Sequence[str]], dict[str, Any]]
    most_texts: int | None = None


def _vllm_body(kind: Kind, texts: Sequence[str]) -> dict[str, Any]:
    task = "embed" if kind.pooled else "token_embed"
    common = {"model": "bench", "encoding_format": "base64", "embed_dtype": "float16"}
    return {**common, "task": task, "input": list(texts)}


def _factory_body(kind: Kind, texts: Sequence[str]) -> dict[str, Any]:
    (text,) = texts
    role = {"task": "document"} if kind.pooled else {"is_query": False}
    return {"model": "bench", "task": "plugin", "data": {"text": text, **role}}


PEERS: Mapping[str, Peer] = {
    "vllm": Peer(name="vllm serve, HTTP", body=_vllm_body),
    "factory": Peer(name="vllm-factory, HTTP", body=_factory_body, most_texts=1),
}
# its own class for the checkpoints of a plugin
FACTORY = {
    "moderncolbert": "ModernBertForColBERT",
    "lfm2_colbert": "LFM2ForColBERT",
    "embeddinggemma": "EmbeddingGemmaModel",
}


@contextlib.contextmanager
def served(given: argparse.Namespace, kind: Kind, side: str, logs: Path) -> Iterator[server.Server]:
    """Serve the checkpoint by another server.

    Args:
        given: The command's arguments; ``given.factory_site`` is where pip put vllm-factory.
        kind: Of the checkpoint.
        side: One of `PEERS`.
        logs: Gets its log, and what it caches.

    Raises:
        ValueError: It has no class for this plugin's checkpoints.
        RuntimeError: It did not start; the message has the end of its log.
    """
    plugin = manifest.read(given.artifact).plugin
    architecture = kind.architecture if side == "vllm" else FACTORY.get(plugin)
    if architecture is None:
        raise ValueError(f"{PEERS[side].name} has no class for {plugin}")
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(given.source)),
        *("--served-model-name", "bench", "--port", str(port), "--runner", "pooling", "--dtype", given.dtype),
        *("--max-model-len", str(kind.most_tokens), "--disable-uvicorn-access-log"),
        *("--hf-overrides", json.dumps({"architectures": [architecture]})),
        *(_vllm(kind) if side == "vllm" else _factory(kind, plugin)),
        *(("--gpu-memory-utilization", str(given.memory_share)) if given.memory_share else ()),
    ]
    environment = {
        **os.environ,
        # sides that start together would write the same compiled graphs at the same time
        "VLLM_CACHE_ROOT": str(logs / f"cache-{side}"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **({"VLLM_PLUGINS": ""} if side == "vllm" else _factory_environment(given, logs, plugin)),
    }
    if given.device == "cpu":
        if "--enforce-eager" not in command:
            command.append("--enforce-eager")
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    with server.command(command, f"http://127.0.0.1:{port}", logs / f"{side}.log", environment) as at:
        yield at


def _vllm(kind: Kind) -> Sequence[str]:
    return () if kind.pooled else ("--pooler-config", json.dumps({"task": "token_embed"}))


def _factory(kind: Kind, plugin: str) -> Sequence[str]:
    # as its own `serve.py` has them
    return (
        *("--io-processor-plugin", f"{plugin}_io", "--trust-remote-code", "--enforce-eager", "--max-num-seqs", "64"),
        *("--max-num-batched-tokens", str(kind.most_tokens)),
        *("--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
    )


def _factory_environment(given: argparse.Namespace, logs: Path, plugin: str) -> dict[str, str]:
    if given.factory_site is None:
        raise ValueError("--factory-site must be where pip put vllm-factory 0.2.1")
    site = factory.install(given.factory_site, logs / "factory")
    environment = factory.environment(site, plugin)
    return environment | {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")}
