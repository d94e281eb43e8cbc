"""Other servers of visual retrievers, as sides of a comparison: vLLM's own classes, and vllm-factory 0.2.1.

Both serve the weights of our artifact, which keep their published names, under the architecture that they know. They run with their own
settings, but for the cache of processed images: pages come once.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_bench import factory, server
from encoder_node.free_port import free_port
from encoder_plugins.artifact import manifest

# more than a page or a query of this comparison has
MOST_TOKENS = 4096
# the words beside an image and a query, of the plugin's page: vLLM's own class knows of none
_TEMPLATE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another server.

    Attributes:
        name: In the table.
        architectures: Its class, by plugin of ours.
        page: Makes the body of a request for one page, of base64.
        query: The same for one query.
        size: Reads from an answer how many bytes the rows have, and how many bytes one number has.
    """

    name: str
    architectures: Mapping[str, str]
    page: Callable[[str], dict[str, Any]]
    query: Callable[[str], dict[str, Any]]
    size: Callable[[Any], tuple[int, int]]

    def rows(self, answer: Any, width: int) -> int:
        """Return how many rows of ``width`` numbers an answer has."""
        content, number = self.size(answer)
        return content // number // width


def _uri(page: str) -> str:
    return f"data:image/jpeg;base64,{page}"


_TOKENS = {"model": "bench", "task": "token_embed", "encoding_format": "base64", "embed_dtype": "float16"}
_FACTORY = {"model": "bench", "task": "plugin"}

PEERS: Mapping[str, Peer] = {
    "vllm": Peer(
        name="vllm serve, HTTP",
        architectures={"colqwen3": "ColQwen3", "nemotron_colembed": "Qwen3VLNemotronEmbedModel"},
        page=lambda page: {
            **_TOKENS,
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": _uri(page)}}]}],
        },
        query=lambda query: {**_TOKENS, "input": f"Query: {query}{'<|endoftext|>' * 10}"},
        size=lambda answer: (len(base64.b64decode(answer["data"][0]["data"])), 2),
    ),
    "factory": Peer(
        name="vllm-factory, HTTP",
        architectures={
            "colqwen3": "Qwen3VLForColPali",
            "collfm2": "LFM2VLForColPali",
            "nemotron_colembed": "NemotronColEmbedModel",
        },
        page=lambda page: {**_FACTORY, "data": {"image": _uri(page), "is_query": False}},
        query=lambda query: {**_FACTORY, "data": {"text": query, "is_query": True}},
        size=lambda answer: (len(base64.b64decode(answer["data"])), 4),
    ),
}


@contextlib.contextmanager
def served(given: argparse.Namespace, side: str, logs: Path) -> Iterator[server.Server]:
    """Serve the artifact by another server.

    Args:
        given: The command's arguments; ``given.factory_site`` is where pip put vllm-factory.
        side: One of `PEERS`.
        logs: Gets its log, and what it caches.

    Raises:
        ValueError: It has no class for this plugin's checkpoints.
        RuntimeError: It did not start; the message has the end of its log.
    """
    plugin = manifest.read(given.artifact).plugin
    architecture = PEERS[side].architectures.get(plugin)
    if architecture is None:
        raise ValueError(f"{PEERS[side].name} has no class for {plugin}")
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"),
        *("--model", str(given.artifact / manifest.MODEL), "--served-model-name", "bench", "--port", str(port)),
        *("--runner", "pooling", "--dtype", given.dtype, "--max-model-len", str(MOST_TOKENS)),
        *("--disable-uvicorn-access-log", "--limit-mm-per-prompt", json.dumps({"image": 1})),
        *("--hf-overrides", json.dumps({"architectures": [architecture]}), "--mm-processor-cache-gb", "0"),
        *(_vllm(logs) if side == "vllm" else _factory(plugin)),
        *(("--gpu-memory-utilization", str(given.memory_share)) if given.memory_share else ()),
    ]
    environment = {
        "VLLM_CACHE_ROOT": str(logs / f"cache-{side}"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **({"VLLM_PLUGINS": ""} if side == "vllm" else _factory_environment(given, logs, plugin)),
    }
    if given.device == "cpu":
        command.append("--enforce-eager")
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    with server.command(command, f"http://127.0.0.1:{port}", logs / f"{side}.log", environment) as at:
        yield at


def _vllm(logs: Path) -> Sequence[str]:
    template = logs / "page.jinja"
    template.write_text(_TEMPLATE, encoding="utf-8")
    return ("--pooler-config", json.dumps({"task": "token_embed"}), "--chat-template", str(template))


def _factory(plugin: str) -> Sequence[str]:
    # as its own `serve.py` has them
    return (
        *("--io-processor-plugin", f"{plugin}_io", "--trust-remote-code", "--max-num-seqs", "32", "--enforce-eager"),
        *("--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--skip-mm-profiling"),
    )


def _factory_environment(given: argparse.Namespace, logs: Path, plugin: str) -> dict[str, str]:
    if given.factory_site is None:
        raise ValueError("--factory-site must be where pip put vllm-factory 0.2.1")
    site = factory.install(given.factory_site, logs / "factory")
    environment = factory.environment(site, plugin)
    return environment | {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")}
