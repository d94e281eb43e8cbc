"""`python -m encoder_bench gliner`: one table of every way to serve a GLiNER checkpoint, from one run on one machine.

Sides: the library at its fastest batch size, the same in 4 and 8 processes on one device, with flashdeberta, vllm-factory over HTTP, ours without a server, and ours over
HTTP, with 32 texts a request and with one. All get the same texts, labels and dtype, one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from encoder_bench import arithmetic, factory, load, sides, workload
from encoder_bench.sides import WAYS, Row, Sides, together
from encoder_bench.workload import Shape
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.families.gliner.config import KEY, GlinerConfig
from encoder_plugins.families.gliner.prompt import PromptBuilder
from encoder_plugins.families.gliner.words import split


@functools.cache
def _builder(folder: Path) -> PromptBuilder:
    model = folder / artifact.MODEL
    config = GlinerConfig.from_dict(json.loads((model / "config.json").read_text(encoding="utf-8"))[KEY])
    return PromptBuilder(Tokenizer.from_file(str(model / "tokenizer.json")), config)


def tokens_of(folder: Path, shape: Shape, texts: Sequence[str]) -> float:
    """Return the tokens of a text with its labels, on average."""
    builder = _builder(folder)
    labels = builder.labels(tuple(workload.labels(shape.labels)))
    lengths = [len(builder.build(labels, builder.word_tokens(split(text))).tokens) for text in texts]
    return sum(lengths) / len(lengths)


def table(rows: Sequence[Row], folder: Path, speed: float, texts: int) -> str:
    """Return the table: against the library, one process and as many as are best, and against what the device could do."""
    model = arithmetic.read(folder / artifact.MODEL)
    lines = [
        "| words | labels | side | texts/s | tokens/s | of the library | of its best, with several processes"
        " | of the arithmetic limit | entities a text | notes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for shape in dict.fromkeys(row.shape for row in rows):
        tokens = tokens_of(folder, shape, workload.texts(min(texts, 64), shape.words))
        limit = speed / model.operations(round(tokens), shape.words, shape.labels)
        same = [row for row in rows if row.shape == shape]
        library = [row for row in same if row.side.startswith("gliner, ")]
        one = max((row.rate for row in library if not row.side.endswith(" processes")), default=0.0)
        best = max((row.rate for row in library), default=0.0)
        for row in same:
            ratios = " | ".join(f"{row.rate / base:.1f} ×" if base else "" for base in (one, best))
            lines.append(
                f"| {shape.words} | {shape.labels} | {row.side} | {row.rate:.4g} | {row.rate * tokens:.3g} | {ratios}"
                f" | {row.rate / limit:.1%} | {row.entities:.4g} | {row.notes} |"
            )
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path, help="prepared, by `encoder-plugins prepare`")
    parser.add_argument("source", type=Path, help="the checkpoint that it was prepared from, for the library")
    parser.add_argument(
        "--sides",
        nargs="+",
        type=sides.name,
        metavar="SIDE",
        default=["library", "ours", "http-1"],
        help="library[-PROCESSES], flashdeberta, factory, ours[-ENGINES], http[-ENGINES[xAPI_SERVERS]], before[-ENGINES], profile",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--words", nargs="+", type=int, default=[64, 256, 512])
    parser.add_argument("--labels", nargs="+", type=int, default=[5, 25])
    parser.add_argument("--texts", type=int, default=512, help="different ones, for all sides but the library")
    parser.add_argument("--library-texts", type=int, help="of each of the library's measurements; by default as many")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[8, 16, 32, 64, 128], help="of the library")
    parser.add_argument(
        "--threshold",
        type=float,
        default=workload.THRESHOLD,
        help="of scores; random weights put thousands of spans of one text above 0.5, and none of another",
    )
    parser.add_argument("--repeats", type=int, default=2, help="of the library; the fastest counts")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement of ours")
    parser.add_argument("--warm", type=float, default=1.5, help="seconds before it")
    parser.add_argument("--clients", nargs="+", default=WAYS, help="over HTTP: clients x texts a request")
    parser.add_argument("--processes", type=int, default=4, help="of clients")
    parser.add_argument("--api-servers", type=int, help="of each engine; by default what `serve` decides")
    parser.add_argument(
        "--before", type=Path, help="for the sides `before`: a folder with another commit's packages and their metadata"
    )
    parser.add_argument("--before-artifact", type=Path, help="the same checkpoint, prepared by that commit")
    parser.add_argument("--factory-site", type=Path, help="where pip put vllm-factory==0.2.1 (--target)")
    parser.add_argument("--profile", action="store_true", help="count kernel launches and waits of an engine's steps")
    parser.add_argument(
        "--at-once", action="store_true", help="start all sides at the same time, then measure them in turn"
    )
    parser.add_argument("--memory-share", type=float, help="of a GPU, for each engine of those that are there at once")
    parser.add_argument("--cell-seconds", type=float, default=900, help="in which a side in process must be done")
    parser.add_argument("--logs", type=Path, help="keep what each side logged here")
    parser.add_argument("--table", type=Path, help="write the table here too, as soon as a line is known")


def main(given: argparse.Namespace) -> int:
    """Run all sides, and print the table; a side that fails is a line below it."""
    given.artifact, given.source = given.artifact.absolute(), given.source.absolute()
    if "factory" in given.sides and given.factory_site is None:
        raise SystemExit("--sides factory needs --factory-site")
    if any(side.startswith("before") for side in given.sides) and not (given.before and given.before_artifact):
        raise SystemExit("--sides before needs --before and --before-artifact")
    names = [*given.sides, *["profile"] * (given.profile and "profile" not in given.sides)]
    report = Report(given)
    with contextlib.ExitStack() as stack:
        folder = (given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        started = Sides(given, folder, stack.enter_context(load.Workers(given.processes)))
        for group in [names] if given.at_once else [[name] for name in names]:
            with together({name: started.open(name) for name in group}) as measures:
                for shape in report.shapes:
                    for name in group:
                        try:
                            if isinstance(measure := measures[name], Exception):
                                raise measure
                            for row in measure(shape):
                                report.add(row)
                        except Exception as error:  # the others' numbers are worth having
                            report.fail(name, error)
                            measures[name] = error
    print(report.text())
    return 1 if report.failed else 0


class Report:
    """What is known so far."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._speed, self._where = arithmetic.speed(given.device, given.dtype)
        self.shapes = [Shape(words, labels) for words in given.words for labels in given.labels]
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}

    def add(self, row: Row) -> None:
        """Take a line."""
        self.rows.append(row)
        self._say(f"{row.side}: {row.shape}: {row.rate:.1f} texts/s; {row.notes}")

    def fail(self, side: str, error: Exception) -> None:
        """Take why a side has no more lines."""
        if side not in self.failed:
            self.failed[side] = f"{side}: {type(error).__name__}: {error}"
            self._say(self.failed[side])

    def text(self) -> str:
        """Return all of it."""
        given = self._given
        parts = [_head(given, self._where), table(self.rows, given.artifact, self._speed, given.texts)]
        if "factory" in given.sides:
            parts.append("\nvllm-factory with:")
            parts += [f"- `{patch.path}`: `{patch.before}` → `{patch.after}`: {patch.why}" for patch in factory.PATCHES]
        parts += [f"\nfailed: {line}" for line in self.failed.values()]
        return "\n".join(parts)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if self._given.table is not None:
            self._given.table.write_text(f"{self.text()}\n", encoding="utf-8")


def _head(given: argparse.Namespace, where: str) -> str:
    manifest = artifact.read(given.artifact)
    return (
        f"`python -m encoder_bench {' '.join(sys.argv[1:])}`\n\n{manifest.plugin}, {given.dtype}, "
        f"{platform.machine()} with {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; limit: {where}\n"
    )
