"""`python -m encoder_bench gliner`: one table of every way to serve a GLiNER checkpoint, from one run on one machine.

Sides: the library at its fastest batch size, the same with flashdeberta, vllm-factory over HTTP, ours in process, and ours over
HTTP, with 32 texts a request and with one. All get the same texts, labels and number format, one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from encoder_bench import arithmetic, factory, load, server, workload
from encoder_bench.peers import COUNTED, Result, Task
from encoder_bench.workload import THRESHOLD, Shape
from encoder_plugins import artifact
from encoder_plugins.gliner.config import KEY, GlinerConfig
from encoder_plugins.gliner.prompt import PromptBuilder
from encoder_plugins.gliner.words import split

SIDES = ("library", "flashdeberta", "factory", "ours", "http-1", "http-2")
# how over HTTP: clients, texts a request
WAYS = ((16, 32), (64, 1))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    side: str
    shape: Shape
    rate: float
    entities: int
    notes: str = ""


class Comparison:
    """The sides, one after the other."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given = given
        self._folder = folder
        self._plugin = artifact.read(given.artifact).plugin
        self.shapes = [Shape(words, labels) for words in given.words for labels in given.labels]

    def rows(self, side: str) -> Iterator[Row]:
        """Yield what one side does."""
        if side == "factory":
            yield from self._factory()
        elif side.startswith("http-"):
            yield from self._http(int(side.partition("-")[2]))
        else:
            yield from self._process(side)

    def _task(self) -> Task:
        given = self._given
        return Task(
            source=str(given.source),
            artifact=str(given.artifact),
            device=given.device,
            dtype=given.dtype,
            texts=given.texts,
            shapes=tuple((shape.words, shape.labels) for shape in self.shapes),
            batch_sizes=tuple(given.batch_sizes),
            repeats=given.repeats,
            profile=given.profile,
        )

    def _process(self, side: str) -> Iterator[Row]:
        command = [sys.executable, "-m", "encoder_bench.peers", side, json.dumps(asdict(self._task()))]
        with (self._folder / f"{side}.log").open("w") as log:
            done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert done.stdout is not None
            for line in done.stdout:
                if line.startswith('{"words"'):
                    result = Result(**json.loads(line))
                    notes = ", ".join(f"{value:g} {name}" for name, value in result.notes.items())
                    yield Row(result.how, Shape(result.words, result.labels), result.rate, result.entities, notes)
            if done.wait():
                raise RuntimeError(f"{side} ended with {done.returncode}: {self._end(side)}")

    def _end(self, name: str) -> str:
        lines = (self._folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no log"

    def _http(self, engines: int) -> Iterator[Row]:
        given = self._given
        arguments = ["--accelerator", "cpu" if given.device == "cpu" else "nvidia", "--dtype", given.dtype]
        arguments += ["--engines", str(engines), "--max-in-flight", "4096"]
        if given.api_servers:
            arguments += ["--api-servers", str(given.api_servers)]
        with server.served(given.artifact, self._folder / f"http-{engines}.log", *arguments) as at:
            for shape in self.shapes:
                for clients, texts in WAYS:
                    yield self._measured(
                        f"ours, HTTP, {engines} engine{'s' * (engines > 1)}", at, shape, clients, texts
                    )

    def _factory(self) -> Iterator[Row]:
        given = self._given
        site = factory.install(given.factory_site, self._folder)
        model = factory.prepare(given.artifact, self._folder / "factory-model", self._plugin)
        port = server.free_port()
        command = factory.command(model, self._plugin, port, "--dtype", given.dtype)
        environment = factory.environment(site, self._plugin)
        environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
        if given.device == "cpu":
            command.append("--enforce-eager")
            environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        with server.command(command, f"http://127.0.0.1:{port}", self._folder / "factory.log", environment) as at:
            for shape in self.shapes:
                # it takes one text a request: this many clients are what 32 texts of 16 clients are
                for clients in (64, 512):
                    yield self._measured("vllm-factory 0.2.1, HTTP", at, shape, clients, 1, flat_ner=True)

    def _measured(self, side: str, at: server.Server, shape: Shape, clients: int, texts: int, **more: Any) -> Row:
        given = self._given
        corpus, labels = workload.texts(given.texts, shape.words), workload.labels(shape.labels)
        more |= {"labels": labels, "threshold": THRESHOLD}
        parts = [corpus[start : start + texts] for start in range(0, len(corpus) - texts + 1, texts)]
        bodies = [load.body({"texts": part, **more} if texts > 1 else {"text": part[0], **more}) for part in parts]
        sender = load.Clients(f"{at.url}/pooling", bodies, clients, given.processes)
        found = sender.run(given.seconds, given.warm)
        notes = f"p50 {found.median * 1000:.0f} ms, p99 {found.percentile(0.99) * 1000:.0f} ms"
        name = f"{side}, {clients} clients x {texts} text{'s' * (texts > 1)}"
        return Row(name, shape, found.requests * texts / found.seconds, self._entities(at, corpus, more), notes)

    def _entities(self, at: server.Server, corpus: Sequence[str], more: dict[str, Any]) -> int:
        """Count the entities of the texts that every side's are counted of."""
        total = 0
        for text in sorted(corpus, key=len)[:COUNTED]:
            request = urllib.request.Request(f"{at.url}/pooling", load.body({"text": text, **more}), load.HEADERS)
            with urllib.request.urlopen(request, timeout=120) as response:
                data = json.load(response)["data"]
            total += len(data["entities"] if isinstance(data, dict) else data)
        return total


def tokens_of(folder: Path, shape: Shape, texts: Sequence[str]) -> float:
    """Return the tokens of a text with its labels, on average."""
    model = folder / artifact.MODEL
    config = GlinerConfig.from_dict(json.loads((model / "config.json").read_text(encoding="utf-8"))[KEY])
    builder = PromptBuilder(Tokenizer.from_file(str(model / "tokenizer.json")), config)
    labels = builder.labels(tuple(workload.labels(shape.labels)))
    lengths = [len(builder.build(labels, builder.word_tokens(split(text))).tokens) for text in texts]
    return sum(lengths) / len(lengths)


def table(rows: Sequence[Row], folder: Path, speed: float, texts: int) -> str:
    """Return the table: against the library's best of the same shape, and against what the device could do."""
    model = arithmetic.read(folder / artifact.MODEL)
    lines = [
        "| words | labels | side | texts/s | tokens/s | of the library | of the arithmetic limit | entities | notes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for shape in dict.fromkeys(row.shape for row in rows):
        tokens = tokens_of(folder, shape, workload.texts(min(texts, 64), shape.words))
        limit = speed / model.operations(round(tokens), shape.words, shape.labels)
        same = [row for row in rows if row.shape == shape]
        base = max((row.rate for row in same if row.side.startswith("gliner, ")), default=0.0)
        for row in same:
            ratio = f"{row.rate / base:.1f} ×" if base else ""
            lines.append(
                f"| {shape.words} | {shape.labels} | {row.side} | {row.rate:.4g} | {row.rate * tokens:.3g} | {ratio}"
                f" | {row.rate / limit:.1%} | {row.entities} | {row.notes} |"
            )
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path, help="prepared, by `encoder-plugins prepare`")
    parser.add_argument("source", type=Path, help="the checkpoint that it was prepared from, for the library")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["library", "ours", "http-1"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--words", nargs="+", type=int, default=[64, 256, 512])
    parser.add_argument("--labels", nargs="+", type=int, default=[5, 25])
    parser.add_argument("--texts", type=int, default=512, help="of each measurement")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[8, 16, 32, 64], help="of the library")
    parser.add_argument("--repeats", type=int, default=2, help="in process; the fastest counts")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement over HTTP")
    parser.add_argument("--warm", type=float, default=1.5, help="seconds before it")
    parser.add_argument("--processes", type=int, default=4, help="of clients")
    parser.add_argument("--api-servers", type=int, help="of each engine; by default what `serve` decides")
    parser.add_argument("--factory-site", type=Path, help="where pip put vllm-factory==0.2.1 (--target)")
    parser.add_argument("--profile", action="store_true", help="count kernel launches and waits of ours in process")
    parser.add_argument("--logs", type=Path, help="keep what each side said here")


def main(given: argparse.Namespace) -> int:
    """Run all sides, and print the table; a side that fails is a line below it."""
    given.artifact, given.source = given.artifact.absolute(), given.source.absolute()
    if "factory" in given.sides and given.factory_site is None:
        raise SystemExit("--sides factory needs --factory-site")
    rows: list[Row] = []
    failed: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        comparison = Comparison(given, folder)
        for side in given.sides:
            try:
                for row in comparison.rows(side):
                    rows.append(row)
                    print(f"{row.side}: {row.shape}: {row.rate:.1f} texts/s; {row.notes}", file=sys.stderr, flush=True)
            except Exception as error:  # the others' numbers are worth having
                failed.append(f"{side}: {type(error).__name__}: {error}")
                print(failed[-1], file=sys.stderr, flush=True)
    speed, where = arithmetic.speed(given.device, given.dtype)
    print(_head(given, where))
    print(table(rows, given.artifact, speed, given.texts))
    if "factory" in given.sides:
        print("\nvllm-factory with:")
        for patch in factory.PATCHES:
            print(f"- `{patch.path}`: `{patch.before}` → `{patch.after}`: {patch.why}")
    for line in failed:
        print(f"\nfailed: {line}")
    return 1 if failed else 0


def _head(given: argparse.Namespace, where: str) -> str:
    manifest = artifact.read(given.artifact)
    return (
        f"`python -m encoder_bench {' '.join(sys.argv[1:])}`\n\n{manifest.plugin}, {given.dtype}, "
        f"{platform.machine()} with {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; limit: {where}\n"
    )
