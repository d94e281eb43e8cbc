"""`python -m encoder_bench gliner2`: GLiNER2 by the library at its fastest batch size and by ours over HTTP, from one run on one machine.

Both get the same texts, schemas and dtype, and answer with confidences and offsets. Both are started at the same time, then measured one
behind the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from encoder_bench import load, server, workload
from encoder_bench.gliner2_peers import SCHEMAS, Cell, Task, values
from encoder_bench.peer_process import started
from encoder_bench.sides import package_path, together
from encoder_plugins.artifact import manifest
from encoder_plugins.prep import reference_environment

SIDES = ("library", "http")
COUNTED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        side: Who, and how.
        words: Of each text.
        schema: Its name.
        rate: Texts a second.
        values: Values with a place in their text, a text.
        notes: Further figures.
    """

    side: str
    words: int
    schema: str
    rate: float
    values: float
    notes: str = ""


Measure = Callable[[], Iterator[Row]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "artifact", type=Path, help="prepared, by `encoder_bench unrecorded` or `encoder-plugins prepare`"
    )
    parser.add_argument("source", type=Path, help="the checkpoint that it was prepared from, for the library")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--words", nargs="+", type=int, default=[64, 256, 512])
    parser.add_argument("--texts", type=int, default=512, help="different ones of each length")
    parser.add_argument("--library-texts", type=int, help="of each of the library's measurements; by default as many")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[8, 16, 32, 64], help="of the library")
    parser.add_argument("--repeats", type=int, default=2, help="of the library; the fastest counts")
    parser.add_argument("--clients", nargs="+", default=["16x32", "64x1"], help="over HTTP: clients x texts a request")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement of ours")
    parser.add_argument("--warm", type=float, default=1, help="seconds before it")
    parser.add_argument("--processes", type=int, default=4, help="of clients")
    parser.add_argument("--memory-share", type=float, help="of a GPU, for each engine")
    parser.add_argument("--side-seconds", type=float, default=900, help="in which the library must be done")
    parser.add_argument("--logs", type=Path, help="keep what each side logged here")
    parser.add_argument("--table", type=Path, help="write the table here too, as soon as a line is known")


def main(given: argparse.Namespace) -> int:
    """Run both sides, and print the table; a side that fails is a line below it."""
    given.artifact, given.source = given.artifact.absolute(), given.source.absolute()
    rows: list[Row] = []
    failed: list[str] = []

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if given.table is not None:
            given.table.write_text(f"{_text(given, rows, failed)}\n", encoding="utf-8")

    with contextlib.ExitStack() as stack:
        folder = (given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        workers = stack.enter_context(load.Workers(given.processes))
        open_side: dict[str, AbstractContextManager[Measure]] = {
            "library": _library(given, folder),
            "http": _http(given, folder, workers),
        }
        with together({side: open_side[side] for side in given.sides}) as measures:
            for side, measure in measures.items():
                try:
                    if isinstance(measure, Exception):
                        raise measure
                    for row in measure():
                        rows.append(row)
                        say(f"{row.side}: {row.words} words, {row.schema}: {row.rate:.4g} texts/s {row.notes}")
                except Exception as error:  # the other's numbers are worth having
                    failed.append(f"{side}: {type(error).__name__}: {error}")
                    say(failed[-1])
    print(_text(given, rows, failed))
    return 1 if failed else 0


@contextlib.contextmanager
def _library(given: argparse.Namespace, folder: Path) -> Iterator[Measure]:
    count = given.library_texts or given.texts
    task = Task(
        source=str(given.source),
        device=given.device,
        dtype=given.dtype,
        texts={str(words): workload.texts(count, words) for words in given.words},
        counted=min(COUNTED, count),
        batch_sizes=given.batch_sizes,
        repeats=given.repeats,
    )
    python = reference_environment.python(reference_environment.provide("gliner2"))
    environment = {**os.environ, "PYTHONPATH": package_path(), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", "encoder_bench.gliner2_peers"]
    with started(command, asdict(task), folder / "library.log", environment, given.side_seconds) as cells:

        def measure() -> Iterator[Row]:
            for cell in (Cell(**cell) for cell in cells):
                side = f"gliner2, batches of {cell.size}"
                yield Row(side=side, words=cell.words, schema=cell.schema, rate=cell.rate, values=cell.values)

        yield measure


@contextlib.contextmanager
def _http(given: argparse.Namespace, folder: Path, workers: load.Workers) -> Iterator[Measure]:
    arguments = ["--accelerator", "cpu" if given.device == "cpu" else "nvidia", "--dtype", given.dtype]
    arguments += ["--max-in-flight", "4096"]
    if given.memory_share:
        arguments += ["--", "--gpu-memory-utilization", str(given.memory_share)]
    with server.served(given.artifact, folder / "http.log", *arguments) as at:
        yield partial(_measured, given, at, workers)


def _measured(given: argparse.Namespace, at: server.Server, workers: load.Workers) -> Iterator[Row]:
    for words in given.words:
        texts = workload.texts(given.texts, words)
        for name, schema in SCHEMAS.items():
            found = _values(at, {"texts": texts[:COUNTED], "schema": schema}) / len(texts[:COUNTED])
            for way in given.clients:
                clients, number = map(int, way.split("x"))
                parts = [texts[start : start + number] for start in range(0, len(texts) - number + 1, number)]
                bodies = [load.body({"texts": part, "schema": schema}) for part in parts]
                before = server.processor_seconds(at.process.pid)
                run = workers.run(f"{at.url}/pooling", bodies, clients, given.seconds, given.warm)
                taken = (server.processor_seconds(at.process.pid) - before) / max(1, run.all_requests * number)
                yield Row(
                    side=f"ours, HTTP, {clients} client{'s' * (clients > 1)} x {number} text{'s' * (number > 1)}",
                    words=words,
                    schema=name,
                    rate=run.requests * number / run.seconds,
                    values=found,
                    notes=f"p50 {run.median * 1000:.3g} ms, p99 {run.percentile(0.99) * 1000:.3g} ms, {taken * 1000:.3g} ms of processor time a text",
                )


def _values(at: server.Server, data: dict[str, object]) -> int:
    request = urllib.request.Request(f"{at.url}/pooling", load.body(data), load.HEADERS)
    with urllib.request.urlopen(request, timeout=120) as response:
        return values(json.load(response)["data"])


def _text(given: argparse.Namespace, rows: Sequence[Row], failed: Sequence[str]) -> str:
    where = platform.machine()
    if given.device == "cuda":
        import torch

        where = str(torch.cuda.get_device_name())
    cores, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    plugin = manifest.read(given.artifact).plugin
    lines = [
        f"`python -m encoder_bench {' '.join(sys.argv[1:])}`\n",
        f"{plugin}, {given.dtype}, {where}, {cores} cores, load {busy:.1f}\n",
        "| words | schema | side | texts/s | of the library | values a text | notes |",
        "|---|---|---|---|---|---|---|",
    ]
    library = {(row.words, row.schema): row.rate for row in rows if row.side.startswith("gliner2")}
    order = {name: place for place, name in enumerate(SCHEMAS)}
    for row in sorted(rows, key=lambda row: (row.words, order[row.schema])):
        base = library.get((row.words, row.schema))
        ratio = f"{row.rate / base:.1f}" if base else ""
        lines.append(
            f"| {row.words} | {row.schema} | {row.side} | {row.rate:.4g} | {ratio} | {row.values:.3g} | {row.notes} |"
        )
    return "\n".join([*lines, *(f"\nfailed: {line}" for line in failed)])
