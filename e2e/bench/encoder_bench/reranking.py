"""The sides of a reranking comparison, for ``linking``: each text has candidates of its own, and spans that may be entities.

That is what GLinker's fourth layer requests: the candidates of the mentions of a text, in groups of 20.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from encoder_bench import comparison, factory_extraction, load, workload
from encoder_bench.comparison import Measure
from encoder_bench.linking_peers import Cell
from encoder_bench.linking_workload import COUNTED, Row, candidates, mentions
from encoder_bench.reranking_peers import Task

PLUGIN = "modernbert_gliner_rerank"
# 32 texts of 512 words with 1 000 candidates each are above the defaults
LIMITS = ("--limit", "candidates=16777216", "--limit", "labels=32768")


def sides(
    given: argparse.Namespace, logs: Path, workers: load.Workers
) -> Mapping[str, AbstractContextManager[Measure[Row]]]:
    """Return what opens each side."""
    return {
        "library": _library(given, logs),
        "http": _http(given, logs, workers),
        "factory": _factory(given, logs, workers),
    }


@contextlib.contextmanager
def _library(given: argparse.Namespace, logs: Path) -> Iterator[Measure[Row]]:
    count = given.library_texts or given.texts
    texts = {str(words): workload.texts(count, words) for words in given.words}
    task = Task(
        source=str(given.source),
        device=given.device,
        dtype=given.dtype,
        texts=texts,
        spans={words: [mentions(text) for text in some] for words, some in texts.items()},
        candidates={str(number): candidates(count, number) for number in given.labels},
        max_labels=given.max_labels,
        counted=min(COUNTED, count),
        batch_sizes=given.batch_sizes,
        repeats=given.repeats,
        threshold=given.threshold,
    )
    with comparison.library(given, "encoder_bench.reranking_peers", "gliner", asdict(task), logs) as cells:

        def measure() -> Iterator[Row]:
            for cell in (Cell(**cell) for cell in cells):
                yield Row(
                    side=f"gliner, batches of {cell.size}",
                    words=cell.words,
                    labels=cell.labels,
                    sets="own",
                    rate=cell.rate,
                    entities=cell.entities,
                )

        yield measure


@contextlib.contextmanager
def _http(given: argparse.Namespace, logs: Path, workers: load.Workers) -> Iterator[Measure[Row]]:
    with comparison.served(given, logs, "--max-in-flight", "4096", *LIMITS) as at:

        def measure() -> Iterator[Row]:
            for number in given.labels:
                for words in given.words:
                    texts, labels = workload.texts(given.texts, words), candidates(given.texts, number)
                    counted = body(texts[:COUNTED], labels[:COUNTED], given.threshold, given.max_labels)
                    results = comparison.answer(at, counted)["results"]
                    for way in comparison.ways(given):
                        bodies = [
                            load.body(body(*part, given.threshold, given.max_labels))
                            for part in zip(workload.parts(texts, way[1]), workload.parts(labels, way[1]), strict=True)
                        ]
                        found = comparison.measured(given, at, workers, bodies, way, "text")
                        yield Row(
                            side=f"ours, HTTP, {found.load}",
                            words=words,
                            labels=number,
                            sets="own",
                            rate=found.rate,
                            entities=sum(len(result["entities"]) for result in results) / len(results),
                            notes=found.notes,
                        )

        yield measure


@contextlib.contextmanager
def _factory(given: argparse.Namespace, logs: Path, workers: load.Workers) -> Iterator[Measure[Row]]:
    with factory_extraction.served(given, PLUGIN, logs) as at:

        def measure() -> Iterator[Row]:
            for number in given.labels:
                for words in given.words:
                    texts, labels = workload.texts(given.texts, words), candidates(given.texts, number)
                    # it reads all candidates at once, and knows no spans
                    data = [
                        {"text": text, "labels": own, "threshold": given.threshold, "flat_ner": True}
                        for text, own in zip(texts, labels, strict=True)
                    ]
                    answers = [comparison.answer(at, one) for one in data[:COUNTED]]
                    for way in factory_extraction.one_by_one(comparison.ways(given)):
                        found = comparison.measured(given, at, workers, [load.body(one) for one in data], way, "text")
                        yield Row(
                            side=f"{factory_extraction.NAME}, {found.load}",
                            words=words,
                            labels=number,
                            sets="own",
                            rate=found.rate,
                            entities=sum(map(len, answers)) / len(answers),
                            notes=found.notes,
                        )

        yield measure


def body(texts: Sequence[str], labels: Sequence[Sequence[str]], threshold: float, max_labels: int) -> dict[str, Any]:
    """Return the `data` of a request for some texts, each with its own candidates."""
    return {
        "texts": list(texts),
        "candidates_per_text": [
            [{"id": f"E{number}", "label": label} for number, label in enumerate(own)] for own in labels
        ],
        "input_spans": [mentions(text) for text in texts],
        "threshold": threshold,
        "max_labels": max_labels,
    }
