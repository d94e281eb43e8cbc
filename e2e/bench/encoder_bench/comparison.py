"""What comparisons of a library with ours over HTTP share: arguments, the run of all sides, and what a load test found.

All sides are started at the same time, then measured one behind the other; a side that fails is a line below the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from encoder_bench import load, server
from encoder_bench.peer_process import started
from encoder_bench.sides import package_path, together
from encoder_plugins.artifact import manifest
from encoder_plugins.prep import reference_environment

SIDES = ("library", "http")
Line = TypeVar("Line")
Measure = Callable[[], Iterator[Line]]
Sides = Mapping[str, AbstractContextManager[Measure[Line]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What clients of ours saw.

    Attributes:
        load: How many clients with how many items a request.
        rate: Items a second.
        notes: Latencies, and the server's processor time.
    """

    load: str
    rate: float
    notes: str


def add_arguments(
    parser: argparse.ArgumentParser, *, clients: Sequence[str], seconds: float, of: str, peers: Sequence[str] = ()
) -> None:
    """Declare the arguments that all of these commands have; ``of`` is what a request has several of, ``peers`` are further sides."""
    parser.add_argument(
        "artifact", type=Path, help="prepared, by `encoder_bench unrecorded` or `encoder-plugins prepare`"
    )
    parser.add_argument("source", type=Path, help="the checkpoint that it was prepared from, for the library")
    parser.add_argument("--sides", nargs="+", choices=(*SIDES, *peers), default=list(SIDES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--clients", nargs="+", default=list(clients), help=f"over HTTP: clients x {of} a request")
    parser.add_argument("--seconds", type=float, default=seconds, help="of each measurement of ours")
    parser.add_argument("--warm", type=float, default=1, help="seconds before it")
    parser.add_argument("--processes", type=int, default=4, help="of clients")
    parser.add_argument("--engines", type=int, help="of ours; by default what `serve` decides")
    parser.add_argument("--api-servers", type=int, help="of each engine; by default what `serve` decides")
    parser.add_argument("--memory-share", type=float, help="of a GPU, for each engine")
    parser.add_argument(
        "--vllm", action="append", default=[], help="an argument of vLLM's own for ours, such as --vllm=--enforce-eager"
    )
    parser.add_argument("--side-seconds", type=float, default=900, help="in which the library must be done")
    parser.add_argument("--logs", type=Path, help="keep what each side logged here")
    parser.add_argument("--table", type=Path, help="write the table here too, as soon as a line is known")


def run(
    given: argparse.Namespace,
    sides: Callable[[Path, load.Workers], Sides[Line]],
    table: Callable[[Sequence[Line]], Sequence[str]],
) -> int:
    """Run the sides, and print the table.

    Args:
        given: The command's arguments.
        sides: Makes what opens each side, given a folder for logs and the processes that send requests.
        table: Makes the lines of the table.

    Returns:
        The command's exit status: 1 if a side failed.
    """
    given.artifact, given.source = given.artifact.absolute(), given.source.absolute()
    rows: list[Line] = []
    failed: list[str] = []

    def text() -> str:
        return "\n".join([*_head(given), *table(rows), *(f"\nfailed: {line}" for line in failed)])

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if given.table is not None:
            given.table.write_text(f"{text()}\n", encoding="utf-8")

    with contextlib.ExitStack() as stack:
        folder = (given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        workers = stack.enter_context(load.Workers(given.processes))
        opened = sides(folder, workers)
        with together({side: opened[side] for side in given.sides}) as measures:
            for side, measure in measures.items():
                try:
                    if isinstance(measure, Exception):
                        raise measure
                    for row in measure():
                        rows.append(row)
                        say(str(row))
                except Exception as error:  # the other's numbers are worth having
                    failed.append(f"{side}: {type(error).__name__}: {error}")
                    say(failed[-1])
    print(text())
    return 1 if failed else 0


def library(
    given: argparse.Namespace, module: str, environment: str, task: Mapping[str, Any], logs: Path
) -> AbstractContextManager[Iterator[dict[str, Any]]]:
    """Start a module of this package in the environment of a library; gives the cells that it measures."""
    python = reference_environment.python(reference_environment.provide(environment))
    variables = {**os.environ, "PYTHONPATH": package_path(), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", module]
    return started(command, task, logs / "library.log", variables, given.side_seconds)


def served(given: argparse.Namespace, logs: Path, *more: str) -> AbstractContextManager[server.Server]:
    """Serve the artifact as the engine image does."""
    arguments = ["--accelerator", "cpu" if given.device == "cpu" else "nvidia", "--dtype", given.dtype, *more]
    if given.engines:
        arguments += ["--engines", str(given.engines)]
    if given.api_servers:
        arguments += ["--api-servers", str(given.api_servers)]
    own = ["--gpu-memory-utilization", str(given.memory_share)] if given.memory_share else []
    if own or given.vllm:
        arguments += ["--", *own, *given.vllm]
    return server.served(given.artifact, logs / "http.log", *arguments)


def ways(given: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Return how the requests come: clients, and items of a request."""
    for way in given.clients:
        clients, number = map(int, way.split("x"))
        yield clients, number


def measured(
    given: argparse.Namespace,
    at: server.Server,
    workers: load.Workers,
    bodies: Sequence[bytes],
    way: tuple[int, int],
    of: str,
) -> Found:
    """Send requests in turn for as long as the arguments say.

    Args:
        given: The command's arguments.
        at: The server.
        workers: What sends.
        bodies: The requests.
        way: Clients, and items of a request.
        of: What an item is called.
    """
    clients, number = way
    before = server.processor_seconds(at.process.pid)
    seen = workers.run(f"{at.url}/pooling", bodies, clients, given.seconds, given.warm)
    taken = (server.processor_seconds(at.process.pid) - before) / max(1, seen.all_requests * number)
    return Found(
        load=f"{clients} client{'s' * (clients > 1)} x {number} a request",
        rate=seen.requests * number / seen.seconds,
        notes=f"p50 {seen.median * 1000:.3g} ms, p99 {seen.percentile(0.99) * 1000:.3g} ms, {taken * 1000:.3g} ms of processor time a {of}",
    )


def answer(at: server.Server, data: Mapping[str, Any]) -> Any:
    """Return the `data` of one answer of ours."""
    return posted(at, load.body(data))["data"]


def posted(at: server.Server, body: bytes) -> Any:
    """Return the answer to one request; the error of a request that is refused says why."""
    request = urllib.request.Request(f"{at.url}/pooling", body, load.HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error}: {error.read(1_000).decode(errors='replace')}") from None


def _head(given: argparse.Namespace) -> list[str]:
    where = platform.machine()
    if given.device == "cuda":
        import torch

        where = str(torch.cuda.get_device_name())
    cores, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    plugin = manifest.read(given.artifact).plugin
    command = " ".join(sys.argv[1:])
    return [
        f"`python -m encoder_bench {command}`\n",
        f"{plugin}, {given.dtype}, {where}, {cores} cores, load {busy:.1f}\n",
    ]
