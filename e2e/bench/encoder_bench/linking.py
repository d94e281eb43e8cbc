"""`python -m encoder_bench linking`: entity linking by gliner and by ours over HTTP, from one run on one machine.

With a bi-encoder the library gets vectors of labels that were computed before, the same for all texts. Ours gets the labels with each
request: the same set always, another one of eight sets with each request, and sets that no request had before; or the name of a set
that the artifact has (``unrecorded --label-sets``). With a reranker both get candidates of each text and the spans that may be entities:
``reranking``.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from encoder_bench import comparison, factory_extraction, load, reranking, workload
from encoder_bench.comparison import Measure
from encoder_bench.linking_peers import Cell, Task
from encoder_bench.linking_workload import COUNTED, MOST_TEXTS, NAMED, SETS, Row, fields, label_sets
from encoder_plugins.artifact import manifest

# 32 texts of 512 words with 1 000 labels are above the default
CANDIDATES = 1 << 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    comparison.add_arguments(parser, clients=("16x32", "64x1"), seconds=3, of="texts", peers=("factory",))
    factory_extraction.add_arguments(parser)
    parser.add_argument("--words", nargs="+", type=int, default=[64, 256, 512])
    parser.add_argument("--labels", nargs="+", type=int, help="by default 20, 100 and 1000; 5, 20 and 40 of a reranker")
    parser.add_argument("--sets", nargs="+", choices=(*SETS, NAMED), default=list(SETS), help="of a bi-encoder")
    parser.add_argument("--max-labels", type=int, default=20, help="that a reranker reads at once")
    parser.add_argument("--texts", type=int, default=512, help="different ones of each length")
    parser.add_argument("--library-texts", type=int, help="of each of the library's measurements; by default as many")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[8, 16, 32, 64], help="of the library")
    parser.add_argument("--repeats", type=int, default=2, help="of the library; the fastest counts")
    parser.add_argument("--threshold", type=float, default=0.9, help="of scores")


def main(given: argparse.Namespace) -> int:
    """Run the sides, and print the table."""
    if manifest.read(given.artifact).plugin == reranking.PLUGIN:
        given.labels = given.labels or [5, 20, 40]
        return comparison.run(given, lambda logs, workers: reranking.sides(given, logs, workers), table)
    given.labels = given.labels or [20, 100, 1000]
    return comparison.run(
        given,
        lambda logs, workers: {
            "library": _library(given, logs),
            "http": _http(given, logs, workers),
            "factory": _factory(given, logs, workers),
        },
        table,
    )


def limits(labels: int) -> list[str]:
    """Return the arguments of a server that takes so many labels, of up to 16 tokens each, with a text."""
    values = {
        "candidates": CANDIDATES,
        "labels": max(1_000, labels),
        "label_tokens": max(50_000, 16 * labels),
        "body_bytes": max(32 << 20, 64 * labels),
    }
    return [part for name, value in values.items() for part in ("--limit", f"{name}={value}")]


@contextlib.contextmanager
def _library(given: argparse.Namespace, logs: Path) -> Iterator[Measure[Row]]:
    count = given.library_texts or given.texts
    task = Task(
        source=str(given.source),
        device=given.device,
        dtype=given.dtype,
        texts={str(words): workload.texts(count, words) for words in given.words},
        labels={str(number): label_sets(number, "same")[0] for number in given.labels},
        counted=min(COUNTED, count),
        batch_sizes=given.batch_sizes,
        repeats=given.repeats,
        threshold=given.threshold,
    )
    with comparison.library(given, "encoder_bench.linking_peers", "gliner", asdict(task), logs) as cells:

        def measure() -> Iterator[Row]:
            for cell in (Cell(**cell) for cell in cells):
                yield Row(
                    side=f"gliner, batches of {cell.size}",
                    words=cell.words,
                    labels=cell.labels,
                    sets="same",
                    rate=cell.rate,
                    entities=cell.entities,
                    notes=f"{cell.label_rate:.4g} labels encoded a second",
                )

        yield measure


@contextlib.contextmanager
def _http(given: argparse.Namespace, logs: Path, workers: load.Workers) -> Iterator[Measure[Row]]:
    with comparison.served(given, logs, "--max-in-flight", "4096", *limits(max(given.labels))) as at:

        def measure() -> Iterator[Row]:
            for number in given.labels:
                for words in given.words:
                    texts = workload.texts(given.texts, words)
                    common = {"threshold": given.threshold}
                    counted = {"texts": texts[:COUNTED], "labels": label_sets(number, "same")[0], **common}
                    results = comparison.answer(at, counted)["results"]
                    entities = sum(len(result["entities"]) for result in results) / len(results)
                    for sets in given.sets:
                        for way in comparison.ways(given):
                            bodies = _bodies(texts, fields(number, sets), way[1], common)
                            found = comparison.measured(given, at, workers, bodies, way, "text")
                            yield Row(
                                side=f"ours, HTTP, {found.load}",
                                words=words,
                                labels=number,
                                sets=sets,
                                rate=found.rate,
                                entities=entities,
                                notes=found.notes,
                            )

        yield measure


@contextlib.contextmanager
def _factory(given: argparse.Namespace, logs: Path, workers: load.Workers) -> Iterator[Measure[Row]]:
    with factory_extraction.served(given, manifest.read(given.artifact).plugin, logs) as at:

        def measure() -> Iterator[Row]:
            for number in given.labels:
                for words in given.words:
                    texts = workload.texts(given.texts, words)
                    for sets in given.sets:
                        lists = label_sets(number, sets)
                        data = [
                            {"text": text, "labels": lists[place % len(lists)], "threshold": given.threshold}
                            for place, text in enumerate(texts)
                        ]
                        answers = [comparison.answer(at, one) for one in data[:COUNTED]]
                        for way in factory_extraction.one_by_one(comparison.ways(given)):
                            bodies = [load.body(one) for one in data]
                            found = comparison.measured(given, at, workers, bodies, way, "text")
                            yield Row(
                                side=f"{factory_extraction.NAME}, {found.load}",
                                words=words,
                                labels=number,
                                sets=sets,
                                rate=found.rate,
                                entities=sum(map(len, answers)) / len(answers),
                                notes=found.notes,
                            )

        yield measure


def _bodies(
    texts: Sequence[str], sets: Sequence[Mapping[str, object]], number: int, more: Mapping[str, object]
) -> list[bytes]:
    """Return requests of so many texts, each with the next set of labels."""
    parts = workload.parts(texts, number)
    count = max(len(parts), min(len(sets), MOST_TEXTS // number))
    return [
        load.body({"texts": parts[place % len(parts)], **sets[place % len(sets)], **more}) for place in range(count)
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return the table: each line over the library with as many labels, and over the same load with the same set."""
    lines = [
        "| labels | words | side | sets of labels | texts/s | of the library | of the same set | entities a text | notes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    library = {(row.words, row.labels): row.rate for row in rows if row.side.startswith("gliner")}
    same = {(row.words, row.labels, row.side): row.rate for row in rows if row.sets == "same"}
    for row in sorted(rows, key=lambda row: (row.labels, row.words)):
        bases = (library.get((row.words, row.labels)), same.get((row.words, row.labels, row.side)))
        ratios = " | ".join(f"{row.rate / base:.2f}" if base else "" for base in bases)
        lines.append(
            f"| {row.labels} | {row.words} | {row.side} | {row.sets} | {row.rate:.4g} | {ratios} | {row.entities:.3g} | {row.notes} |"
        )
    return lines
