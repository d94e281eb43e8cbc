"""The sides of a GLiNER comparison that run in a process of their own: the library, with and without flashdeberta, and ours.

`python -m encoder_bench.peers NAME JSON` starts a side, and then measures each shape that it reads, and prints one line of JSON
for each. A process a side, or several for the library: none has another's memory, threads, or patches in it.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from encoder_bench import workload
from encoder_bench.cells import READY
from encoder_bench.workload import Shape

# of a request of ours
TEXTS = 32
PROCESSOR = "ms of processor time a text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a side has to do.

    Attributes:
        source: The checkpoint as published, for the library.
        artifact: The prepared one, for us.
        device: `cpu` or `cuda`.
        dtype: Of weights and computation.
        texts: Texts of each measurement of ours.
        library_texts: Those of the library, which is slower.
        counted: Texts whose entities are counted, so that sides which compute something else are seen.
        batch_sizes: Those that the library may choose from.
        repeats: Measurements of the library at each batch size; the fastest counts, and the slowest is noted.
        seconds: Of each measurement of ours.
        warm: Seconds before it.
        threshold: Of the scores of entities.
        engines: Of ours; None leaves the choice to it.
        arguments: Further arguments for vLLM.
    """

    source: str
    artifact: str
    device: str
    dtype: str
    texts: int
    library_texts: int
    counted: int
    batch_sizes: tuple[int, ...]
    repeats: int
    seconds: float
    warm: float
    threshold: float
    engines: int | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a side did with one shape.

    Attributes:
        words: Of each text.
        labels: Of each text.
        rate: Texts a second.
        how: What computed them.
        entities: Of those texts whose entities are counted.
        size: The library's batch size; 0 where there is none.
        notes: Further figures by their names.
    """

    words: int
    labels: int
    rate: float
    how: str
    entities: int
    size: int = 0
    notes: dict[str, float] = field(default_factory=dict)


# of a shape; with a batch size, at that one alone and for the task's seconds, as one of several processes does it
Measure = Callable[[Shape, int], Result]


def library(task: Task) -> Measure:
    """Load gliner: it gets all texts at once, sorted by length, at its fastest batch size."""
    return _library(task, "gliner")


def flashdeberta(task: Task) -> Measure:
    """Load gliner with flashdeberta's kernels."""
    os.environ["USE_FLASHDEBERTA"] = "1"
    return _library(task, "gliner + flashdeberta")


class _Run(NamedTuple):
    seconds: float
    processor: float


def _library(task: Task, name: str) -> Measure:
    import torch
    from gliner import GLiNER

    model = GLiNER.from_pretrained(task.source, local_files_only=True, map_location=task.device)
    model = model.to(task.device).to(getattr(torch, task.dtype)).eval()
    kind = type(model.model.token_rep_layer.bert_layer.model).__name__

    def infer(texts: list[str], labels: list[str], size: int) -> list[Any]:
        with torch.inference_mode():
            found: list[Any] = model.inference(texts, labels, threshold=task.threshold, batch_size=size)
        return found

    def measure(shape: Shape, size: int) -> Result:
        texts, labels = workload.texts(task.library_texts, shape.words), workload.labels(shape.labels)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        ordered = [texts[number] for number in order]
        infer(ordered[-min(task.batch_sizes) :], labels, min(task.batch_sizes))
        sizes = [size] if size else task.batch_sizes
        runs: dict[int, list[_Run]] = {each: [] for each in sizes}
        for each in sizes:
            gc.collect()
            begin = time.perf_counter()
            while len(runs[each]) < task.repeats or (size and time.perf_counter() - begin < task.seconds):
                start, before = time.perf_counter(), time.process_time()
                found = infer(ordered, labels, each)
                runs[each].append(_Run(time.perf_counter() - start, time.process_time() - before))
        best = min(runs, key=lambda each: min(runs[each]))
        took = [run.seconds for run in runs[best]]
        # one of several processes: what it does while the others do the same, and not its luckiest moment
        seconds = sum(took) / len(took) if size else min(took)
        notes = {
            PROCESSOR: round(min(run.processor for run in runs[best]) / len(texts) * 1000, 3),
            "% slower the slowest of its runs": round((max(took) / min(took) - 1) * 100, 1),
        }
        return Result(
            words=shape.words,
            labels=shape.labels,
            rate=len(texts) / seconds,
            how=f"{name}, batches of {best} ({kind})",
            entities=sum(len(one) for number, one in zip(order, found, strict=True) if number < task.counted),
            size=best,
            notes=notes,
        )

    return measure


def ours(task: Task) -> Measure:
    """Start ours without a server: it gets requests of so many texts, one behind the other."""
    from encoder_bench import server
    from encoder_plugins import offline

    model = offline.Model(
        task.artifact,
        accelerator="cpu" if task.device == "cpu" else "nvidia",
        dtype=task.dtype,
        engines=task.engines,
        arguments=task.arguments,
    )
    engines = model.engines

    def measure(shape: Shape, size: int) -> Result:
        texts, labels = workload.texts(task.texts, shape.words), workload.labels(shape.labels)
        bodies = [
            {"texts": texts[start : start + TEXTS], "labels": labels, "threshold": task.threshold}
            for start in range(0, len(texts), TEXTS)
        ]
        counted = [{"texts": texts[: task.counted], "labels": labels, "threshold": task.threshold}]
        count = sum(len(result["entities"]) for answer in model.map(counted) for result in answer["results"])
        _run(model, bodies, task.warm)
        before = server.processor_seconds(os.getpid())
        rate, done = _run(model, bodies, task.seconds)
        notes = {PROCESSOR: round((server.processor_seconds(os.getpid()) - before) / done * 1000, 3)}
        how = f"ours, in process, {engines} engine{'s' * (engines > 1)}, {TEXTS} texts a request"
        return Result(words=shape.words, labels=shape.labels, rate=rate, how=how, entities=count, notes=notes)

    return measure


def _run(model: Any, bodies: Sequence[dict[str, Any]], seconds: float) -> tuple[float, int]:
    """Return the texts a second, from the first request to the last answer, and how many there were."""
    begin = time.perf_counter()
    done = sum(len(answer["results"]) for answer in model.map(_until(begin + seconds, bodies)))
    return done / (time.perf_counter() - begin), done


def _until(end: float, bodies: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield all requests again and again, and none of them for another time after the moment ``end``."""
    yield from bodies
    for body in itertools.cycle(bodies):
        if time.perf_counter() > end:
            return
        yield body


def profiled(task: Task) -> Measure:
    """Start one engine in this very process, where torch's profiler sees it: `LLM.encode` with one request of all texts."""
    os.environ |= {"VLLM_PLUGINS": "encoder", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if task.device == "cpu":
        os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    from vllm import LLM

    from encoder_plugins import catalog
    from encoder_plugins.artifact.manifest import MODEL, read
    from encoder_plugins.serving import tuning

    folder = Path(task.artifact)
    plugin = catalog.get(read(folder).plugin)
    config = json.loads((folder / MODEL / "config.json").read_text(encoding="utf-8"))
    limits = {"texts": 100_000, "characters": 1 << 30}
    arguments: dict[str, Any] = {"enforce_eager": True}
    if task.device == "cuda":
        tokens = max(tuning.BATCH_TOKENS, config.get("max_position_embeddings", 0))
        arguments = {
            "max_num_batched_tokens": tokens,
            "max_num_seqs": tuning.BATCH_SEQUENCES,
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
        **arguments,
    )

    def measure(shape: Shape, size: int) -> Result:
        data = {"texts": workload.texts(task.texts, shape.words), "labels": workload.labels(shape.labels)}

        def infer() -> Any:
            return llm.encode({"data": data | {"threshold": task.threshold}}, pooling_task="plugin", use_tqdm=False)[
                0
            ].outputs

        answer = infer()
        start = time.perf_counter()
        infer()
        rate = task.texts / (time.perf_counter() - start)
        return Result(
            words=shape.words,
            labels=shape.labels,
            rate=rate,
            how="ours, LLM.encode",
            entities=sum(len(result["entities"]) for result in answer["results"][: task.counted]),
            notes=_profiled(llm, infer),
        )

    return measure


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


SIDES = {"library": library, "flashdeberta": flashdeberta, "ours": ours, "profile": profiled}


def main() -> None:
    """Start one side, print that, and measure each requested shape, one line of JSON each."""
    name = sys.argv[1]
    given: dict[str, Any] = json.loads(sys.argv[2])
    task = Task(**(given | {key: tuple(value) for key, value in given.items() if isinstance(value, list)}))
    measure = SIDES[name](task)
    print(READY, flush=True)
    for line in sys.stdin:
        words, labels, size = json.loads(line)
        print(json.dumps(asdict(measure(Shape(words, labels), size))), flush=True)


if __name__ == "__main__":
    main()
