"""The sides of a GLiNER comparison that run in a process of their own: the library, with and without flashdeberta, and ours.

`python -m encoder_bench.peers NAME JSON` measures every shape and prints one line of JSON for each. A process a side: none
has another's memory, threads, or patches in it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from encoder_bench import workload
from encoder_bench.workload import THRESHOLD, Shape

# texts whose entities are counted, so that sides which compute something else are seen
COUNTED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a side has to do.

    Attributes:
        source: The checkpoint as published, for the library.
        artifact: The prepared one, for us.
        device: `cpu` or `cuda`.
        dtype: Number format.
        texts: Texts of each measurement.
        shapes: Words and labels of each measurement.
        batch_sizes: Those that the library may choose from.
        repeats: Measurements of each shape; the fastest counts.
        profile: Whether kernel launches and waits are counted.
        arguments: Further arguments of the engine in process.
    """

    source: str
    artifact: str
    device: str
    dtype: str
    texts: int
    shapes: tuple[tuple[int, int], ...]
    batch_sizes: tuple[int, ...] = (8, 16, 32, 64)
    repeats: int = 2
    profile: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a side did with one shape."""

    words: int
    labels: int
    rate: float
    how: str
    entities: int
    notes: dict[str, float] = field(default_factory=dict)


def library(task: Task) -> Iterator[Result]:
    """Yield what gliner does: all texts at once, sorted by length, at its fastest batch size."""
    yield from _library(task, "gliner")


def flashdeberta(task: Task) -> Iterator[Result]:
    """Yield what gliner does with flashdeberta's kernels."""
    os.environ["USE_FLASHDEBERTA"] = "1"
    yield from _library(task, "gliner + flashdeberta")


def _library(task: Task, name: str) -> Iterator[Result]:
    import torch
    from gliner import GLiNER

    model = GLiNER.from_pretrained(task.source, local_files_only=True, map_location=task.device)
    model = model.to(task.device).to(getattr(torch, task.dtype)).eval()
    kind = type(model.model.token_rep_layer.bert_layer.model).__name__

    def infer(texts: list[str], labels: list[str], size: int) -> list[Any]:
        with torch.inference_mode():
            found: list[Any] = model.inference(texts, labels, threshold=THRESHOLD, batch_size=size)
        return found

    for shape in _shapes(task):
        texts, labels = _inputs(task, shape)
        infer(texts[: max(task.batch_sizes)], labels, task.batch_sizes[0])
        sample = texts[: max(task.batch_sizes) * 2]
        took = {size: _best(partial(infer, sample, labels, size), 2) for size in task.batch_sizes}
        size = min(took, key=took.__getitem__)
        seconds = _best(partial(infer, texts, labels, size), task.repeats)
        count = sum(map(len, infer(texts[:COUNTED], labels, size)))
        yield _result(shape, len(texts) / seconds, f"{name}, batches of {size} ({kind})", count)


def ours(task: Task) -> Iterator[Result]:
    """Yield what `LLM.encode` does with one request of all texts."""
    os.environ |= {"VLLM_PLUGINS": "encoder", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if task.device == "cpu":
        os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if task.device == "cpu" or task.profile:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    from encoder_plugins import catalog, tuning
    from encoder_plugins.artifact import MODEL, read

    folder = Path(task.artifact)
    plugin = catalog.get(read(folder).plugin)
    config = json.loads((folder / MODEL / "config.json").read_text(encoding="utf-8"))
    limits = {"texts": 100_000, "characters": 1 << 30}
    arguments: dict[str, Any] = {"enforce_eager": True}
    if task.device == "cuda":
        # a step as large as the table of vLLM's own figures has it for one engine in process
        tokens = max(32_768, config.get("max_position_embeddings", 0))
        arguments = {
            "max_num_batched_tokens": tokens,
            "max_num_seqs": 1024,
            "compilation_config": {"cudagraph_capture_sizes": list(tuning.graph_sizes(tokens))},
        }
    llm = LLM(
        str(folder / MODEL),
        runner="pooling",
        dtype=task.dtype,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        io_processor_plugin="encoder",
        additional_config={"encoder": {"plugin": plugin.name, "limits": limits}},
        **(arguments | task.arguments),
    )

    def infer(texts: list[str], labels: list[str]) -> list[Any]:
        data = {"texts": texts, "labels": labels, "threshold": THRESHOLD}
        answer = llm.encode({"data": data}, pooling_task="plugin", use_tqdm=False)[0].outputs
        found: list[Any] = [result["entities"] for result in answer["results"]]
        return found

    for shape in _shapes(task):
        texts, labels = _inputs(task, shape)
        infer(texts[: max(8, len(texts) // 4)], labels)
        seconds = _best(partial(infer, texts, labels), task.repeats)
        count = sum(map(len, infer(texts[:COUNTED], labels)))
        notes = _profiled(llm, partial(infer, texts, labels)) if task.profile else {}
        yield _result(shape, len(texts) / seconds, "ours, LLM.encode", count, notes)


def _profiled(llm: Any, call: Callable[[], object]) -> dict[str, float]:
    """Return kernel launches, graph launches and waits of the host, for each step of the engine."""
    from torch.profiler import ProfilerActivity, profile

    engine, steps = llm.llm_engine, 0
    original = engine.engine_core.get_output

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        return original(*arguments, **named)

    engine.engine_core.get_output = counted
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            call()
    finally:
        del engine.engine_core.get_output
    events = {event.key: event.count for event in recorded.key_averages()}

    def each(*names: str) -> float:
        total = sum(int(count) for key, count in events.items() if key.startswith(names))
        return round(total / max(1, steps), 1)

    return {
        "steps": steps,
        "kernel launches": each("cudaLaunchKernel", "cuLaunchKernel"),
        "graph launches": each("cudaGraphLaunch"),
        "host waits": each("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
        "copies": each("cudaMemcpyAsync"),
    }


def _shapes(task: Task) -> Sequence[Shape]:
    return [Shape(words, labels) for words, labels in task.shapes]


def _inputs(task: Task, shape: Shape) -> tuple[list[str], list[str]]:
    return sorted(workload.texts(task.texts, shape.words), key=len), workload.labels(shape.labels)


def _best(call: Callable[[], object], repeats: int) -> float:
    """Return the seconds of the fastest call; what each returns is on the host, so that it has ended."""
    gc.collect()
    return min(_timed(call) for _ in range(repeats))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _result(shape: Shape, rate: float, how: str, entities: int, notes: dict[str, float] | None = None) -> Result:
    return Result(words=shape.words, labels=shape.labels, rate=rate, how=how, entities=entities, notes=notes or {})


SIDES = {"library": library, "flashdeberta": flashdeberta, "ours": ours}


def main() -> None:
    """Run one side and print its results as they come."""
    name, given = sys.argv[1], json.loads(sys.argv[2])
    given["shapes"] = tuple(map(tuple, given["shapes"]))
    for result in SIDES[name](Task(**given)):
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
