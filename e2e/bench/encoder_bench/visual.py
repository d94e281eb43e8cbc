"""`python -m encoder_bench visual`: pages and queries a second by the library at its fastest batch size, by ours and by other servers over HTTP.

All get the same files and queries in the same dtype in one run, and give rows of float16; vllm-factory gives float32.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from encoder_bench import comparison, load, server, visual_servers, workload
from encoder_bench import pages as drawn
from encoder_bench.comparison import Measure
from encoder_bench.visual_peers import Cell, Task
from encoder_plugins.artifact import manifest

# whose mathematics each checkpoint has: those of Nemotron bring code, which runs on transformers
LIBRARIES = {"nemotron_colembed": "transformers"}
LIBRARY = "sauerkrautlm-colpali"
WANTED = {"encoding": "base64", "embedding_dtype": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        kind: `pages` or `queries`.
        side: Who.
        load: In which batches, or from how many clients.
        rate: Pages or queries a second.
        rows: Rows of the first page or query, alone: another number is another computation.
        notes: Further figures.
    """

    kind: str
    side: str
    load: str
    rate: float
    rows: int
    notes: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    comparison.add_arguments(
        parser, clients=("1x1", "8x1", "32x1", "8x8"), seconds=4, of="pages", peers=tuple(visual_servers.PEERS)
    )
    parser.add_argument("--factory-site", type=Path, help="where pip put vllm-factory==0.2.1 (--target)")
    parser.add_argument("--pages", type=int, default=256, help="different ones")
    parser.add_argument("--queries", type=int, default=1024, help="different ones")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[4, 8, 16, 32], help="of the library")
    parser.add_argument(
        "--workers", nargs="+", type=int, default=[0, 8], help="of the library: processes that process pages"
    )


def main(given: argparse.Namespace) -> int:
    """Run the sides, and print the table."""
    files = drawn.pages(given.pages, len(os.sched_getaffinity(0)))
    return comparison.run(
        given,
        lambda logs, workers: {
            "library": _library(given, logs, files),
            "http": _http(given, logs, files, workers),
            **{side: _peer(given, side, logs, files, workers) for side in visual_servers.PEERS},
        },
        table,
    )


@contextlib.contextmanager
def _library(given: argparse.Namespace, logs: Path, files: Sequence[bytes]) -> Iterator[Measure[Row]]:
    folder = logs / "pages"
    folder.mkdir()
    for number, content in enumerate(files):
        (folder / f"{number:05}.jpg").write_bytes(content)
    plugin = manifest.read(given.artifact).plugin
    task = Task(
        plugin=plugin,
        source=str(given.source),
        device=given.device,
        dtype=given.dtype,
        pages=str(folder),
        queries=drawn.queries(given.queries),
        batch_sizes=given.batch_sizes,
        workers=given.workers,
    )
    with comparison.library(given, "encoder_bench.visual_peers", "sauerkrautlm_colpali", asdict(task), logs) as cells:

        def measure() -> Iterator[Row]:
            for cell in (Cell(**cell) for cell in cells):
                yield Row(
                    kind=cell.kind, side=LIBRARIES.get(plugin, LIBRARY), load=cell.load, rate=cell.rate, rows=cell.rows
                )

        yield measure


@contextlib.contextmanager
def _http(
    given: argparse.Namespace, logs: Path, files: Sequence[bytes], workers: load.Workers
) -> Iterator[Measure[Row]]:
    images = [base64.b64encode(content).decode("ascii") for content in files]
    # pages come once: a page that comes again must be new to it
    with comparison.served(given, logs, "--limit", "image_cache_bytes=1") as at:

        def measure() -> Iterator[Row]:
            for kind, of, items, more in (
                ("queries", "query", drawn.queries(given.queries), {"input_type": "query"}),
                ("pages", "page", images, {}),
            ):
                field = "images" if kind == "pages" else "texts"
                first = comparison.answer(at, {field: items[:1], **WANTED, **more})["rows"][0]
                for way in comparison.ways(given):
                    parts = workload.parts(items, way[1])
                    bodies = [load.body({field: part, **WANTED, **more}) for part in parts]
                    found = _measured(given, at, workers, bodies, way, of)
                    yield Row(
                        kind=kind, side="ours, HTTP", load=found.load, rate=found.rate, rows=first, notes=found.notes
                    )

        yield measure


@contextlib.contextmanager
def _peer(
    given: argparse.Namespace, side: str, logs: Path, files: Sequence[bytes], workers: load.Workers
) -> Iterator[Measure[Row]]:
    peer = visual_servers.PEERS[side]
    pages = [base64.b64encode(content).decode("ascii") for content in files]
    config = json.loads((given.artifact / manifest.MODEL / "config.json").read_text(encoding="utf-8"))
    width = config.get("dim") or config["text_config"]["hidden_size"]
    with visual_servers.served(given, side, logs) as at:

        def measure() -> Iterator[Row]:
            for kind, of, requests in (
                ("queries", "query", [peer.query(query) for query in drawn.queries(given.queries)]),
                ("pages", "page", [peer.page(page) for page in pages]),
            ):
                bodies = [json.dumps(request).encode() for request in requests]
                rows = peer.rows(comparison.posted(at, bodies[0]), width)
                # both take one page a request
                for way in (way for way in comparison.ways(given) if way[1] == 1):
                    found = _measured(given, at, workers, bodies, way, of)
                    yield Row(kind=kind, side=peer.name, load=found.load, rate=found.rate, rows=rows, notes=found.notes)

        yield measure


def _measured(
    given: argparse.Namespace,
    at: server.Server,
    workers: load.Workers,
    bodies: Sequence[bytes],
    way: tuple[int, int],
    of: str,
) -> comparison.Found:
    """Send requests, and add to what clients saw how busy the GPU was."""
    with _busy(given.device, given.warm, given.seconds) as shares:
        found = comparison.measured(given, at, workers, bodies, way, of)
    return replace(found, notes=f"{found.notes}, GPU busy {sum(shares) / len(shares):.0f} %") if shares else found


@contextlib.contextmanager
def _busy(device: str, warm: float, seconds: float) -> Iterator[list[float]]:
    """Give the percentages of time in which the GPU computed, one for each half second of the measured time."""
    found: list[float] = []
    if device != "cuda":
        yield found
        return
    import torch

    ended = threading.Event()

    def read() -> None:
        pause = warm + 0.5
        while not ended.wait(pause) and len(found) < 2 * seconds:
            found.append(float(torch.cuda.utilization()))
            pause = 0.5

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield found
    finally:
        ended.set()
        reader.join()


def table(rows: Sequence[Row]) -> list[str]:
    """Return the table: each line over the library."""
    lines = [
        "| what | side | load | a second | of the library | rows | notes |",
        "|---|---|---|---|---|---|---|",
    ]
    library = {row.kind: row.rate for row in rows if not row.side.endswith("HTTP")}
    for row in sorted(rows, key=lambda row: row.kind):
        ratio = f"{row.rate / library[row.kind]:.1f}" if row.kind in library else ""
        lines.append(f"| {row.kind} | {row.side} | {row.load} | {row.rate:.4g} | {ratio} | {row.rows} | {row.notes} |")
    return lines
