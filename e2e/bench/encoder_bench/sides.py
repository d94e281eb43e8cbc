"""The sides of a GLiNER comparison: each is started once, and then measures one shape after the other."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import encoder_bench
import encoder_plugins
from encoder_bench import factory, load, server, workload
from encoder_bench.peer_process import PeerProcess, measure_together, running
from encoder_bench.peers import TEXTS, Task
from encoder_bench.workload import Shape
from encoder_node.free_port import free_port
from encoder_plugins.artifact import manifest
from encoder_plugins.prep import reference_environment

# behind the dash: processes of the library, or engines of ours and, behind the x, API servers of each
SIDE = re.compile(r"(library|ours|http|before)(-[1-9]\d*)?|http-[1-9]\d*x[1-9]\d*|flashdeberta|factory|profile")
COUNTED = 64
# how over HTTP: clients, texts a request
WAYS = (f"16x{TEXTS}", "64x1")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        side: Who, and how.
        shape: Of each text.
        rate: Texts a second.
        entities: Entities of a text, on average: a side that finds others computes something else.
        notes: Further figures.
    """

    side: str
    shape: Shape
    rate: float
    entities: float
    notes: str = ""


def name(value: str) -> str:
    """Return the name of a side as it is.

    Raises:
        ValueError: There is no such side.
    """
    if SIDE.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no side")
    return value


Measure = Callable[[Shape], Iterator[Row]]
Side = TypeVar("Side")


class Sides:
    """Starts sides."""

    def __init__(self, given: argparse.Namespace, folder: Path, workers: load.Workers) -> None:
        """Take the command's arguments, a folder for logs, and the processes that send requests."""
        self._given = given
        self._folder = folder
        self._workers = workers
        self._library_texts: int = given.library_texts or given.texts
        self._counted = min(COUNTED, given.texts, self._library_texts)
        self._plugin = manifest.read(given.artifact).plugin
        # several engines share a GPU: how much each may take is what vLLM compares with what is free
        self._arguments = ("--gpu-memory-utilization", str(given.memory_share)) if given.memory_share else ()

    def open(self, side: str) -> AbstractContextManager[Measure]:
        """Return what starts a side, and ends it."""
        kind, _, counts = side.partition("-")
        if kind == "factory":
            return self._factory()
        engines, _, api_servers = counts.partition("x")
        if kind in ("http", "before"):
            return self._http(kind, int(engines) if engines else None, int(api_servers) if api_servers else None)
        return self._process(kind, int(engines) if engines else None)

    def _environment(self, side: str) -> dict[str, str]:
        # sides that start together would write the same compiled graphs at the same time
        return {**os.environ, "VLLM_CACHE_ROOT": str(self._folder / f"cache-{side}")}

    @contextlib.contextmanager
    def _process(self, kind: str, count: int | None) -> Iterator[Measure]:
        given, side = self._given, kind if count is None else f"{kind}-{count}"
        task = Task(
            source=str(given.source),
            artifact=str(given.artifact),
            device=given.device,
            dtype=given.dtype,
            texts=given.texts,
            library_texts=self._library_texts,
            counted=self._counted,
            batch_sizes=tuple(given.batch_sizes),
            repeats=given.repeats,
            seconds=given.seconds,
            warm=given.warm,
            threshold=given.threshold,
            engines=None if kind == "library" else count,
            arguments=self._arguments,
        )
        command = [interpreter(kind), "-m", "encoder_bench.peers", kind, json.dumps(asdict(task))]
        environment = self._environment(side) | {"PYTHONPATH": package_path()}
        numbers = range((count or 1) if kind == "library" else 1)
        processes = [
            PeerProcess(side, command, self._folder / f"{side}-{number}.log", environment, given.cell_seconds)
            for number in numbers
        ]
        with running(processes):

            def measure(shape: Shape) -> Iterator[Row]:
                result = measure_together(processes, shape)
                notes = ", ".join(f"{value:g} {name}" for name, value in result.notes.items())
                yield Row(result.how, shape, result.rate, result.entities / self._counted, notes)

            yield measure

    @contextlib.contextmanager
    def _http(self, kind: str, engines: int | None, api_servers: int | None) -> Iterator[Measure]:
        given = self._given
        side = "-".join([kind, *(str(count) for count in (engines, api_servers) if count)])
        arguments = ["--accelerator", "cpu" if given.device == "cpu" else "nvidia", "--dtype", given.dtype]
        arguments += ["--max-in-flight", "4096"]
        if engines is not None:
            arguments += ["--engines", str(engines)]
        if api_servers or given.api_servers:
            arguments += ["--api-servers", str(api_servers or given.api_servers)]
        if self._arguments:
            arguments += ["--", *self._arguments]
        log, environment, artifact = self._folder / f"{side}.log", self._environment(side), given.artifact
        if kind == "before":
            # another commit's code, with what that commit's prep made of the same checkpoint
            artifact = given.before_artifact
            environment["PYTHONPATH"] = os.pathsep.join([str(given.before), environment.get("PYTHONPATH", "")])
        with server.served(artifact, log, *arguments, environment=environment) as at:

            def measure(shape: Shape) -> Iterator[Row]:
                for way in given.clients:
                    clients, texts = map(int, way.split("x"))
                    name = f"{'ours' if kind == 'http' else 'before'}, HTTP, {_processes(engines, api_servers)}"
                    yield self._measured(name, at, shape, clients, texts)

            yield measure

    @contextlib.contextmanager
    def _factory(self) -> Iterator[Measure]:
        given = self._given
        site = factory.install(given.factory_site, self._folder)
        model = factory.prepare(given.artifact, self._folder / "factory-model", self._plugin)
        port = free_port()
        command = factory.command(model, self._plugin, port, "--dtype", given.dtype, *self._arguments)
        environment = self._environment("factory") | factory.environment(site, self._plugin)
        environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
        if given.device == "cpu":
            command.append("--enforce-eager")
            environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        with server.command(command, f"http://127.0.0.1:{port}", self._folder / "factory.log", environment) as at:

            def measure(shape: Shape) -> Iterator[Row]:
                # it takes one text a request: this many clients are what 32 texts of 16 clients are
                for clients in (512, 64):
                    yield self._measured("vllm-factory 0.2.1, HTTP", at, shape, clients, 1, flat_ner=True)

            yield measure

    def _measured(self, side: str, at: server.Server, shape: Shape, clients: int, texts: int, **more: Any) -> Row:
        given = self._given
        corpus, labels = workload.texts(given.texts, shape.words), workload.labels(shape.labels)
        more |= {"labels": labels, "threshold": given.threshold}
        parts = [corpus[start : start + texts] for start in range(0, len(corpus) - texts + 1, texts)]
        bodies = [load.body({"texts": part, **more} if texts > 1 else {"text": part[0], **more}) for part in parts]
        before = server.processor_seconds(at.process.pid)
        found = self._workers.run(f"{at.url}/pooling", bodies, clients, given.seconds, given.warm)
        taken = (server.processor_seconds(at.process.pid) - before) / max(1, found.all_requests * texts)
        notes = f"{taken * 1000:.3g} ms of processor time a text, p50 {found.median * 1000:.0f} ms, p99 {found.percentile(0.99) * 1000:.0f} ms"
        name = f"{side}, {clients} clients x {texts} text{'s' * (texts > 1)}"
        entities = _entities(at, corpus[: self._counted], more, one_by_one="flat_ner" in more)
        return Row(name, shape, found.requests * texts / found.seconds, entities / self._counted, notes)


def _entities(at: server.Server, texts: Sequence[str], more: Mapping[str, Any], *, one_by_one: bool) -> int:
    """Count the entities of the texts that every side's are counted of."""
    bodies = [{"text": text, **more} for text in texts] if one_by_one else [{"texts": texts, **more}]
    total = 0
    for body in bodies:
        request = urllib.request.Request(f"{at.url}/pooling", load.body(body), load.HEADERS)
        with urllib.request.urlopen(request, timeout=120) as response:
            data = json.load(response)["data"]
        if isinstance(data, dict) and "results" in data:
            total += sum(len(result["entities"]) for result in data["results"])
        else:
            total += len(data["entities"] if isinstance(data, dict) else data)
    return total


def _processes(engines: int | None, api_servers: int | None) -> str:
    if engines is None:
        return "engines as `serve` chooses"
    each = f" with {api_servers} API servers" if api_servers else ""
    return f"{engines} engine{'s' * (engines > 1)}{each}"


@contextlib.contextmanager
def together(managers: Mapping[str, AbstractContextManager[Side]]) -> Iterator[dict[str, Side | Exception]]:
    """Start sides at the same time, and end them so; gives how each measures, or why it did not start."""
    found: dict[str, Side | Exception] = {}
    with ThreadPoolExecutor(len(managers)) as pool:
        starting = {name: pool.submit(manager.__enter__) for name, manager in managers.items()}
        for name, future in starting.items():
            try:
                found[name] = future.result()
            except Exception as error:  # the others' numbers are worth having
                found[name] = error
        try:
            yield found
        finally:
            started = [name for name, measure in found.items() if not isinstance(measure, Exception)]
            list(pool.map(lambda name: managers[name].__exit__(None, None, None), started))


def interpreter(kind: str) -> str:
    """Return the Python of a side: the library has an environment of its own."""
    if kind != "library":
        return sys.executable
    return str(reference_environment.python(reference_environment.provide("gliner")))


def package_path() -> str:
    """Return where a side finds this package, and ours: the library's environment has neither."""
    packages = [encoder_bench.__file__, encoder_plugins.__file__]
    folders = [str(Path(str(file)).parents[1]) for file in packages]
    return os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
