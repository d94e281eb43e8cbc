"""`python -m encoder_bench interference`: how long a short request waits while others are as large as they may be.

The 99th percentile of one short text from one client, alone and beside clients that post requests of the largest allowed
size all the time, with one API server and with four. The longer of both is what tokenising on an event loop would show.
Random weights put thousands of spans of a long text above the default threshold, and trained ones tens: a threshold decides
how much there is to select, send and decode.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from encoder_bench import load, server, workload
from encoder_plugins.families.gliner.limits import LIMITS

SHORT_WORDS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--accelerator", choices=("cpu", "nvidia"), default="cpu")
    parser.add_argument("--api-servers", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--large-clients", type=int, default=2)
    parser.add_argument(
        "--threshold", nargs="+", type=float, default=[workload.THRESHOLD], help="of scores, of all requests"
    )
    parser.add_argument("--large-words", type=int, default=384, help="of each of its texts: what the model takes")
    parser.add_argument("--log", type=Path, default=Path("interference-server.log"))


def large_body(words: int, threshold: float) -> bytes:
    """Return a request with as many texts, and characters in all, as a server takes."""
    limits = {limit.name: limit.default for limit in LIMITS}
    texts = workload.texts(limits["texts"], words, seed=5)
    while sum(map(len, texts)) > limits["characters"]:
        texts.pop()
    return load.body({"texts": texts, "labels": workload.labels(25), "threshold": threshold, "overflow": "truncate"})


def short_bodies(threshold: float) -> list[bytes]:
    """Return requests with one short text each."""
    texts, labels = workload.texts(64, SHORT_WORDS), workload.labels(5)
    return [load.body({"text": text, "labels": labels, "threshold": threshold}) for text in texts]


def main(given: argparse.Namespace) -> int:
    """Measure and print one table."""
    size = len(large_body(given.large_words, given.threshold[0]))
    print(f"`python -m encoder_bench {' '.join(sys.argv[1:])}`\n\na large request has {size:,} bytes\n")
    columns = ("API servers", "threshold", "p50 alone", "p99 alone", "p50 beside", "p99 beside", "p99 over p99")
    print(f"| {' | '.join(columns)} | large requests/s |\n{'|---' * (len(columns) + 1)}|")
    for count in given.api_servers:
        arguments = ["--accelerator", given.accelerator, "--engines", "1", "--api-servers", str(count)]
        with server.served(given.artifact.absolute(), given.log, *arguments) as at:
            for threshold in given.threshold:
                print(f"| {count} | {threshold} | {_row(f'{at.url}/pooling', threshold, given)} |", flush=True)
    return 0


def _row(url: str, threshold: float, given: argparse.Namespace) -> str:
    """Measure short requests alone and beside large ones, and return the table's cells."""
    short = short_bodies(threshold)
    quiet = load.Clients(url, short, 1, 1).run(given.seconds, 2)
    busy, others = _beside(url, short, large_body(given.large_words, threshold), given)
    times = (quiet.median, quiet.percentile(0.99), busy.median, busy.percentile(0.99))
    ratio = busy.percentile(0.99) / quiet.percentile(0.99)
    cells = [*(f"{1e3 * seconds:.1f} ms" for seconds in times), f"{ratio:.1f}"]
    return " | ".join([*cells, f"{others.requests / others.seconds:.2f}"])


def _beside(url: str, short: list[bytes], large: bytes, given: argparse.Namespace) -> tuple[load.Load, load.Load]:
    """Send short requests while large ones are on their way, from another process."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    # it begins earlier and ends later
    other = context.Process(target=_large, args=(url, large, given.large_clients, given.seconds + 8, results))
    other.start()
    try:
        busy = load.Clients(url, short, 1, 1).run(given.seconds, 5)
        found: load.Load = results.get()
    finally:
        other.join()
    return busy, found


def _large(
    url: str, large: bytes, clients: int, seconds: float, results: multiprocessing.SimpleQueue[load.Load]
) -> None:
    import asyncio
    import time

    latencies, answered = asyncio.run(load.send_all(url, [large], clients, 0, time.time(), 0.0, seconds))
    results.put(load.Load(len(latencies), seconds, tuple(latencies), answered))
