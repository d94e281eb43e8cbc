"""`python -m encoder_bench device ARTIFACT`: what full batches take on the device, by kind of kernel.

The engine runs in this process, with the plugin's own requests, tokenisation and answers, under torch's profiler. Which of a
process's work waits for which is not seen here (``step`` shows that of the host): only how long each kernel has run. On a CPU the
operators of torch take the place of kernels.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from encoder_bench import load, pages, workload
from encoder_bench.capacity import LABELLED, THRESHOLD, body_of
from encoder_bench.device_parts import Kernel, table
from encoder_bench.linking_workload import label_sets
from encoder_plugins import catalog
from encoder_plugins.artifact import manifest

# batches before those that count: they compile what is compiled when it is first used
SETTLING = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path, help="prepared")
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument("--words", type=int, default=64, help="of a text (default: %(default)s)")
    lengths.add_argument("--tokens", type=int, help="of a text, in place of words")
    parser.add_argument(
        "--labels", nargs="+", type=int, default=[5], help="of requests that have labels: a table for each"
    )
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="of scores (default: %(default)s)")
    parser.add_argument("--items", type=int, default=32, help="texts or pages of a request (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=4, help="given to the engine at once (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=4, help="of that (default: %(default)s)")
    parser.add_argument("--lines", type=int, default=12, help="of the table of kernels (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--vllm", action="append", default=[], help="a further argument of the engine, as --vllm=--option=value"
    )


def main(given: argparse.Namespace) -> int:
    """Print a table for each number of labels."""
    given.artifact = given.artifact.absolute()
    read = manifest.read(given.artifact)
    make = body_of(read.plugin)
    labels = given.labels if make in LABELLED else [0]
    loop, sent = _started(given, read)
    item = "page" if make is None else "text"
    print(f"`python -m encoder_bench {' '.join(sys.argv[1:])}`\n\n{read.plugin}, {given.dtype}", flush=True)
    for count in labels:
        bodies = _bodies(given, read, count)
        kernels, seconds = _profiled(given, loop, bodies)
        wrong = [kind for kind in sent if kind != "answer"]
        if wrong:
            raise RuntimeError(f"{len(wrong)} of {len(sent)} requests had no answer: {wrong[0]}")
        sent.clear()
        items = given.repeats * given.requests * given.items
        print(
            f"\n{count} labels" if count else "",
            *table(kernels, items, item, seconds, given.lines),
            sep="\n",
            flush=True,
        )
    return 0


def _started(given: argparse.Namespace, read: manifest.Manifest) -> tuple[Any, list[str]]:
    """Return an engine in this process as ``offline`` has it, without threads, and the list that gets the kind of each answer."""
    from encoder_plugins.serving import command, entrypoint, host
    from encoder_plugins.serving.limits import parse
    from encoder_plugins.serving.settings import Settings

    plugin = catalog.get(read.plugin)
    names = [] if body_of(read.plugin) else ["image_cache_bytes=1"]
    service = command.Service(
        artifact=given.artifact,
        name="bench",
        port=0,
        accelerator="nvidia" if given.device == "cuda" else "cpu",
        limits=parse(plugin, names),
        dtype=given.dtype,
        engines=1,
        api_servers=1,
        arguments=tuple(given.vllm),
    )
    checkpoint, here = entrypoint.engine_settings(plugin, service), host.this_host()
    tuning = entrypoint.tuning_of(service, checkpoint, here)
    settings = Settings(plugin=plugin.name, limits=dict(service.limits), digest=read.digest)
    os.environ |= command.environment(os.environ, service, tuning, here.cores, settings)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # only now: variables are read when vLLM is imported
    from encoder_plugins.offline import worker

    sent: list[str] = []
    engine = worker.start(command.engine_arguments(service, plugin, checkpoint, tuning))
    loop = worker.EngineLoop(engine, settings, lambda number, kind, value: sent.append(_kind(kind, value)), parsers=0)
    return loop, sent


def _kind(kind: str, value: object) -> str:
    return kind if kind == "answer" else f"{kind}: {value}"


def _bodies(given: argparse.Namespace, read: manifest.Manifest, labels: int) -> Sequence[bytes]:
    """Return the requests of one repeat."""
    make, count = body_of(read.plugin), given.requests * given.items
    if make is None:
        drawn = [base64.b64encode(page).decode("ascii") for page in pages.pages(count, len(os.sched_getaffinity(0)))]
        form = {"encoding": "base64", "embedding_dtype": "float16"}
        return [load.body({"images": part, **form}) for part in workload.parts(drawn, given.items)]
    if given.tokens:
        tokenizer = Tokenizer.from_file(str(given.artifact / manifest.MODEL / "tokenizer.json"))
        texts = workload.texts_of_tokens(tokenizer, count, given.tokens)
    else:
        texts = workload.texts(count, given.words)
    parts = workload.parts(texts, given.items)
    if make not in LABELLED:
        return [load.body(make(part, 0)) for part in parts]
    more = {}
    if labels > len(workload.LABELS):
        more, labels = {"labels": label_sets(labels, "same")[0]}, 1
    return [load.body({**make(part, labels), "threshold": given.threshold, **more}) for part in parts]


def _profiled(given: argparse.Namespace, loop: Any, bodies: Sequence[bytes]) -> tuple[list[Kernel], float]:
    """Return the kernels of all repeats, and the seconds that these took without the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    def repeat(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            for number, body in enumerate(bodies):
                loop.take(number, body)
            while loop.step():
                pass
        if given.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    repeat(SETTLING)
    seconds = repeat(given.repeats)
    kind = ProfilerActivity.CUDA if given.device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind], acc_events=True) as seen:
        repeat(given.repeats)
    kernels = []
    for event in seen.key_averages():
        micros = event.self_device_time_total if given.device == "cuda" else event.self_cpu_time_total
        if micros:
            kernels.append(Kernel(event.key, event.count, micros))
    return kernels, seconds
