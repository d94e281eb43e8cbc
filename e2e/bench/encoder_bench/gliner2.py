"""`python -m encoder_bench gliner2`: GLiNER2 by the library at its fastest batch size and by ours over HTTP, from one run on one machine.

All get the same texts, schemas and dtype, and answer with confidences and offsets. vllm-factory (`--sides factory`) has one of the three counting
layers, `count_lstm`, whatever the checkpoint says, and takes one text a request.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from encoder_bench import comparison, factory_extraction, load, workload
from encoder_bench.comparison import Measure
from encoder_bench.gliner2_peers import SCHEMAS, Cell, Task, values

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    comparison.add_arguments(parser, clients=("16x32", "64x1"), seconds=3, of="texts", peers=("factory",))
    factory_extraction.add_arguments(parser)
    parser.add_argument("--words", nargs="+", type=int, default=[64, 256, 512])
    parser.add_argument("--texts", type=int, default=512, help="different ones of each length")
    parser.add_argument("--library-texts", type=int, help="of each of the library's measurements; by default as many")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[8, 16, 32, 64], help="of the library")
    parser.add_argument("--repeats", type=int, default=2, help="of the library; the fastest counts")


def main(given: argparse.Namespace) -> int:
    """Run the sides, and print the table."""
    return comparison.run(
        given,
        lambda logs, workers: {
            "library": _library(given, logs),
            "http": _http(given, logs, workers),
            "factory": _factory(given, logs, workers),
        },
        table,
    )


@contextlib.contextmanager
def _library(given: argparse.Namespace, logs: Path) -> Iterator[Measure[Row]]:
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
    with comparison.library(given, "encoder_bench.gliner2_peers", "gliner2", asdict(task), logs) as cells:

        def measure() -> Iterator[Row]:
            for cell in (Cell(**cell) for cell in cells):
                side = f"gliner2, batches of {cell.size}"
                yield Row(side=side, words=cell.words, schema=cell.schema, rate=cell.rate, values=cell.values)

        yield measure


@contextlib.contextmanager
def _http(given: argparse.Namespace, logs: Path, workers: load.Workers) -> Iterator[Measure[Row]]:
    with comparison.served(given, logs, "--max-in-flight", "4096") as at:

        def measure() -> Iterator[Row]:
            for words in given.words:
                texts = workload.texts(given.texts, words)
                for name, schema in SCHEMAS.items():
                    counted = texts[:COUNTED]
                    number = values(comparison.answer(at, {"texts": counted, "schema": schema})) / len(counted)
                    for way in comparison.ways(given):
                        bodies = [
                            load.body({"texts": part, "schema": schema}) for part in workload.parts(texts, way[1])
                        ]
                        found = comparison.measured(given, at, workers, bodies, way, "text")
                        yield Row(
                            side=f"ours, HTTP, {found.load}",
                            words=words,
                            schema=name,
                            rate=found.rate,
                            values=number,
                            notes=found.notes,
                        )

        yield measure


@contextlib.contextmanager
def _factory(given: argparse.Namespace, logs: Path, workers: load.Workers) -> Iterator[Measure[Row]]:
    common = {"include_confidence": True, "include_spans": True}
    with factory_extraction.served(given, "deberta_gliner2", logs) as at:

        def measure() -> Iterator[Row]:
            for words in given.words:
                texts = workload.texts(given.texts, words)
                for name, schema in SCHEMAS.items():
                    data = [{"text": text, "schema": schema, **common} for text in texts]
                    number = sum(values(comparison.answer(at, one)) for one in data[:COUNTED]) / len(data[:COUNTED])
                    bodies = [load.body(one) for one in data]
                    for way in factory_extraction.one_by_one(comparison.ways(given)):
                        found = comparison.measured(given, at, workers, bodies, way, "text")
                        yield Row(
                            side=f"{factory_extraction.NAME}, {found.load}",
                            words=words,
                            schema=name,
                            rate=found.rate,
                            values=number,
                            notes=found.notes,
                        )

        yield measure


def table(rows: Sequence[Row]) -> list[str]:
    """Return the table: each line over the library with the same schema and length."""
    lines = [
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
    return lines
