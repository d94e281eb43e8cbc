"""`python -m encoder_bench scale ARTIFACT --gpus 1 2 4`: what several GPUs of one host serve: a server for each, or one for all.

A server for each GPU is what an EncoderModel with several replicas is. Each has a share of the host's cores, as a pod with a request
for cores has; its clients run on these, too. All are started at once; one GPU, two and so on are measured by sending to as many. With
`--one-port`, one server has vLLM's engines of all GPUs (`--data-parallel-size`) behind its port, and the cores of all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from encoder_bench import capacity, load, server, workload
from encoder_plugins.artifact import manifest

DIFFERENT = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        way: How the GPUs are served.
        gpus: Their number.
        load: Of each GPU: clients, and texts a request.
        rate: Texts a second.
        p50: Seconds, the largest of the servers' medians.
    """

    way: str
    gpus: int
    load: str
    rate: float
    p50: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "artifact", type=Path, help="prepared, by `encoder_bench unrecorded` or `encoder-plugins prepare`"
    )
    parser.add_argument("--gpus", nargs="*", type=int, default=[1, 2], help="numbers of GPUs, a server for each")
    parser.add_argument("--one-port", nargs="*", type=int, default=[], help="numbers of GPUs behind one port")
    parser.add_argument(
        "--clients", nargs="+", default=["64x1", "16x32"], help="of each GPU: clients x texts a request"
    )
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--labels", type=int, default=5, help="of each request, for a plugin that takes any")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warm", type=float, default=3)
    parser.add_argument("--processes", type=int, default=6, help="of clients, for each server")
    parser.add_argument("--engines", type=int, help="of each server of one GPU; by default what `serve` decides")
    parser.add_argument("--logs", type=Path, help="keep the servers' logs here")
    parser.add_argument("--table", type=Path, help="write the table here too, as soon as a line is known")


def main(given: argparse.Namespace) -> int:
    """Measure, and print the table."""
    bodies = _bodies(given)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        logs = given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs.mkdir(parents=True, exist_ok=True)
        most = max(given.gpus, default=0)
        with hosts(given, shares(sorted(os.sched_getaffinity(0)), most), logs) as each:
            for gpus in given.gpus:
                rows += _say(given, rows, _measured("a server for each", each[:gpus], gpus, bodies, given))
        for gpus in given.one_port:
            with _one_port(given, gpus, logs) as one:
                rows += _say(given, rows, _measured("one port", [one], gpus, bodies, given))
    print(f"`python -m encoder_bench {' '.join(sys.argv[1:])}`\n\n{table(rows)}")
    return 0


def shares(cores: Sequence[int], count: int) -> list[list[int]]:
    """Return the cores of each of ``count`` servers: neighbours, equally many."""
    each = max(1, len(cores) // max(1, count))
    return [list(cores[start * each : (start + 1) * each]) for start in range(count)]


def table(rows: Sequence[Row]) -> str:
    """Return the table: each line over one GPU's under the same load."""
    lines = ["| GPUs | way | load of each GPU | texts/s | of one GPU | p50 |", "|---|---|---|---|---|---|"]
    for row in rows:
        alone = next((one.rate for one in rows if (one.gpus, one.load) == (1, row.load)), 0.0)
        ratio = f"{row.rate / alone:.2f}" if alone else ""
        lines.append(f"| {row.gpus} | {row.way} | {row.load} | {row.rate:.4g} | {ratio} | {row.p50 * 1000:.1f} ms |")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Host:
    """A server, and the processes that send to it, on the same cores."""

    at: server.Server
    workers: load.Workers


@contextlib.contextmanager
def hosts(given: argparse.Namespace, cores: Sequence[Sequence[int]], logs: Path) -> Iterator[list[Host]]:
    """Start a server for each GPU at the same time, on its share of the cores."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(max(1, len(cores))) as pool:

        def start(gpu: int) -> Host:
            more = ["--engines", str(given.engines)] if given.engines else []
            environment = {"CUDA_VISIBLE_DEVICES": str(gpu), "VLLM_CACHE_ROOT": str(logs / f"cache-{gpu}")}
            return stack.enter_context(_on(cores[gpu], given, logs / f"gpu-{gpu}.log", more, environment))

        yield list(pool.map(start, range(len(cores))))


@contextlib.contextmanager
def _on(
    cores: Sequence[int], given: argparse.Namespace, log: Path, more: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Host]:
    # of this thread, from which the processes get it
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        arguments = ["--accelerator", "nvidia", "--dtype", given.dtype, "--max-in-flight", "4096", *more]
        with (
            server.served(given.artifact.absolute(), log, *arguments, environment=environment) as at,
            load.Workers(given.processes) as workers,
        ):
            os.sched_setaffinity(0, before)
            yield Host(at, workers)
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _one_port(given: argparse.Namespace, gpus: int, logs: Path) -> Iterator[Host]:
    cores = sorted(os.sched_getaffinity(0))
    more = ["--engines", "1", "--api-servers", str(4 * gpus), "--", "--data-parallel-size", str(gpus)]
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))), "VLLM_CACHE_ROOT": str(logs / "cache-0")}
    with _on(cores, given, logs / f"one-port-{gpus}.log", more, environment) as host:
        yield host


def _measured(
    way: str, each: Sequence[Host], gpus: int, bodies: Mapping[int, Sequence[bytes]], given: argparse.Namespace
) -> Iterator[Row]:
    for wanted in given.clients:
        clients, texts = map(int, wanted.split("x"))

        def send(host: Host, clients: int = clients * gpus // len(each), texts: int = texts) -> load.Load:
            return host.workers.run(f"{host.at.url}/pooling", bodies[texts], clients, given.seconds, given.warm)

        with ThreadPoolExecutor(len(each)) as pool:
            found = list(pool.map(send, each))
        rate = sum(one.requests * texts / one.seconds for one in found)
        yield Row(way, gpus, wanted.replace("x", " x "), rate, max(one.median for one in found))


def _bodies(given: argparse.Namespace) -> dict[int, Sequence[bytes]]:
    make = capacity.body_of(manifest.read(given.artifact).plugin)
    if make is None:
        raise SystemExit("a plugin that takes images is not measured by this command")
    tokenizer = Tokenizer.from_file(str(given.artifact / manifest.MODEL / "tokenizer.json"))
    texts = workload.texts_of_tokens(tokenizer, DIFFERENT, given.tokens)
    numbers = {int(wanted.partition("x")[2]) for wanted in given.clients}
    return {
        number: [load.body(make(part, given.labels)) for part in workload.parts(texts, number)] for number in numbers
    }


def _say(given: argparse.Namespace, before: Sequence[Row], found: Iterator[Row]) -> list[Row]:
    rows = []
    for row in found:
        rows.append(row)
        print(f"{row.gpus} GPUs, {row.way}, {row.load}: {row.rate:.4g} texts/s", file=sys.stderr, flush=True)
        if given.table is not None:
            given.table.write_text(table([*before, *rows]) + "\n", encoding="utf-8")
    return rows
