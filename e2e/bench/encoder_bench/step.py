"""`python -m encoder_bench step ARTIFACT`: what a step of few texts takes, by part, with its CUDA graphs and without.

The engine runs in this process, so that its parts can be timed, and graphs can be left out one by one. A text is tokens by chance, for
GLiNER with the positions of its words and labels: a step takes as long for them, and no tokenizer is measured. Of each part the median
over all repeats is shown; the parts are measured with a clock around them, which adds some microseconds a step, and the table of graphs
without.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_PLUGINS": "encoder",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# of an engine on a CPU
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# tokens of a word of English, as a fraction
TOKENS, WORDS = 4, 3
# the first ones compile what is compiled when it is first used
SETTLING = 10
# plugins with heads that would not answer to such texts
OTHERS = ("deberta_gliner2", "deberta_gliner_linker")

Text = tuple[list[int], dict[str, Any] | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path, help="prepared; of a GLiNER plugin, or of a retriever of text")
    parser.add_argument("--words", type=int, default=64)
    parser.add_argument("--labels", type=int, default=5, help="of GLiNER")
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.5,
        help="of GLiNER: with random weights, half of all spans may be candidates",
    )
    parser.add_argument("--texts", nargs="+", type=int, default=[1, 8, 16, 32], help="of a step")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--memory-share", type=float, default=0.3, help="of the device")
    parser.add_argument("--limit-seconds", type=float, default=80, help="behind which no further line is begun")
    parser.add_argument("--no-graphs", action="store_true", help="leave out the table of steps with and without graphs")


def text(random: np.random.Generator, words: int, labels: int, threshold: float) -> Text:
    """Return a text's tokens, and where its words and labels are: labels first, each behind its marker. Without labels, tokens only."""
    from encoder_plugins.families.gliner.payload import encode

    first = 2 * labels + 2
    ids = random.integers(10, 1000, first + words * TOKENS // WORDS + 1).tolist()
    places = first + np.arange(words) * TOKENS // WORDS
    return ids, encode(places, 1 + 2 * np.arange(labels), threshold) if labels else None


def step(engine: Any, texts: Sequence[Text], number: int, task: str) -> list[int]:
    """Give an engine texts, wait for their answers, and return how many rows each has."""
    from encoder_plugins.serving.engine import OwnParams

    for place, (ids, extra) in enumerate(texts):
        # a copy, as the server makes one for each prompt
        parameters = OwnParams(task=task, extra_kwargs=None if extra is None else dict(extra))
        engine.add_request(f"{number}-{place}", {"prompt_token_ids": ids}, parameters)
    rows = []
    while engine.has_unfinished_requests():
        rows += [len(output.outputs.data) for output in engine.step()]
    return rows


def milliseconds(engine: Any, texts: Sequence[Text], repeats: int, task: str) -> float:
    """Return the median time from the first text given to an engine to the last answer."""
    times = []
    for number in range(repeats + SETTLING):
        start = time.perf_counter()
        step(engine, texts, number, task)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[SETTLING:])


def parts(engine: Any, worker: Any, model: Any, texts: Sequence[Text], repeats: int, task: str) -> Mapping[str, float]:
    """Return the median seconds of each part of a step."""
    from encoder_bench.step_parts import PARTS, Clock, watched

    found, clock = [], Clock()
    with watched(engine, worker, model, clock):
        for number in range(repeats + SETTLING):
            clock.take()
            step(engine, texts, number, task)
            found.append(clock.take())
    return {part: statistics.median(one[part] for one in found[SETTLING:]) for part in PARTS}


def main(given: argparse.Namespace) -> int:
    """Print the tables, each line as soon as it is known."""
    began = time.monotonic()
    import torch

    on_gpu = torch.cuda.is_available()
    os.environ |= ENVIRONMENT | ({} if on_gpu else CPU)
    from vllm import LLM

    from encoder_bench import step_parts
    from encoder_plugins import catalog
    from encoder_plugins.artifact import manifest
    from encoder_plugins.plugin import resolve
    from encoder_plugins.prep.checkpoint import Checkpoint
    from encoder_plugins.serving.tuning import BATCH_TOKENS, graph_sizes

    plugin = catalog.get(manifest.read(given.artifact).plugin)
    if plugin.name in OTHERS:
        print(
            f"{plugin.name}: its requests have more than words and labels; see `encoder_bench device`", file=sys.stderr
        )
        return 2
    model_folder = given.artifact / manifest.MODEL
    checkpoint: Checkpoint = resolve(plugin.checkpoint)
    # what `serve` passes: a checkpoint's configuration may have more positions than a step has tokens
    longest = checkpoint.engine_settings(model_folder, "nvidia" if on_gpu else "cpu").max_model_len
    captured = {"compilation_config": {"cudagraph_capture_sizes": list(graph_sizes(BATCH_TOKENS))}}
    llm = LLM(
        str(model_folder),
        runner="pooling",
        max_model_len=longest,
        dtype=given.dtype,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        gpu_memory_utilization=given.memory_share,
        max_num_batched_tokens=BATCH_TOKENS,
        **(captured if on_gpu else {"enforce_eager": True}),
    )
    models: list[Any] = []
    llm.apply_model(models.append)
    workers: list[Any] = []
    llm.collective_rpc(lambda worker: workers.append(worker))
    (model,), (worker,) = models, workers
    labels = given.labels if plugin.task == "token_classify" else 0
    random = np.random.default_rng(0)
    texts = {count: [text(random, given.words, labels, given.threshold) for _ in range(count)] for count in given.texts}

    def left(count: int) -> bool:
        fine = bool(time.monotonic() - began < given.limit_seconds)
        if not fine:
            print(f"not measured, the time is used up: {count} texts", flush=True)
        return fine

    where = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"`python -m encoder_bench {' '.join(sys.argv[1:])}`\n")
    print(f"{plugin.name}, {given.dtype}, {where}, ready after {time.monotonic() - began:.0f} s\n")
    print(*step_parts.table("texts", {}), sep="\n", flush=True)
    for count in filter(left, texts):
        found = parts(llm.llm_engine, worker, model, texts[count], given.repeats, plugin.task)
        print(*step_parts.lines(count, found), sep="\n", flush=True)
    if labels:
        print()
    for count in filter(left, texts if labels else {}):
        # a text with many candidates takes longer, and one of a trained checkpoint has as many as it has entities
        rows = step(llm.llm_engine, texts[count], SETTLING, plugin.task)
        print(f"{count} texts: {statistics.median(rows):.0f} candidates a text, at most {max(rows)}", flush=True)
    if on_gpu and not given.no_graphs and hasattr(model, "graphs"):
        print("\n| texts | neither graph | the encoder's | the head's | both, ms |", "|---|---|---|---|---|", sep="\n")
        for count in filter(left, texts):
            cells = [
                f"{milliseconds(llm.llm_engine, texts[count], given.repeats, plugin.task):.2f}" for _ in _graphs(model)
            ]
            print(f"| {count} |", " | ".join(cells), "|", flush=True)
    return 0


def _graphs(model: Any) -> Iterator[None]:
    """Yield with neither graph, the encoder's, the head's, and both; a head without graphs has the same twice."""
    whole, head = dict(model.graphs.captured), getattr(model.pooler, "graphs", None)
    for with_whole, with_head in ((False, False), (True, False), (False, True), (True, True)):
        model.graphs.captured = whole if with_whole else {}
        if head is not None:
            model.pooler.graphs = head if with_head else None
        yield
