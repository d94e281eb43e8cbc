"""`python -m encoder_bench pooling ARTIFACT`: a server of sentence embeddings on the CPU against sentence-transformers.

The same texts on the same cores, in one run, taking turns: only the ratios mean anything on another machine. The server is the engine
image's own entry point; the library runs in its own environment, with the batch size that suits it best.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from encoder_bench import server
from encoder_checkpoints.original import original
from encoder_plugins.artifact import manifest
from encoder_plugins.families.embedding.cases import WORDS

TEXTS_A_REQUEST = 64
BATCH_SIZES = (8, 16, 32, 64)
TIMING = "encoder_checkpoints.timing"


@dataclass
class Timings:
    """Seconds that each side took, turn by turn."""

    server: list[float] = field(default_factory=list)
    library: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times longer the library took: the median over the turns."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.server, self.library, strict=True))


class Library:
    """sentence-transformers with a checkpoint, in a process of its own environment."""

    def __init__(self, folder: Path) -> None:
        self._process = original("sentence_transformers")
        self._folder = str(folder)

    def batches(self, requests: Sequence[list[str]], size: int) -> float:
        """Return the seconds in which it answers the requests, in batches of ``size``."""
        found: float = self._process.call(f"{TIMING}:batches", self._folder, list(requests), size)
        return found

    def singles(self, texts: Sequence[str]) -> list[float]:
        """Return the seconds of each text alone."""
        found: list[float] = self._process.call(f"{TIMING}:singles", self._folder, list(texts))
        return found


class Client:
    """Sends a server texts, over connections that stay open."""

    def __init__(self, session: aiohttp.ClientSession, url: str, encoding: str) -> None:
        self._session = session
        self._url = url
        self._encoding = encoding

    async def send(self, texts: Sequence[str]) -> None:
        """Send one request, and read the answer."""
        body = {"model": "bench", "data": {"texts": list(texts), "encoding": self._encoding}}
        async with self._session.post(f"{self._url}/pooling", json=body) as response:
            response.raise_for_status()
            await response.read()

    async def send_all(self, requests: Sequence[Sequence[str]], clients: int) -> float:
        """Send all, ``clients`` at a time; return the seconds that it took."""
        waiting = iter(requests)

        async def client() -> None:
            for request in waiting:
                await self.send(request)

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return time.perf_counter() - start


def texts(count: int, seed: int) -> list[str]:
    """Return texts of 4 to 60 words, most of them short, as search passages and queries are."""
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=min(60, 4 + int(chosen.expovariate(1 / 18))))) for _ in range(count)]


def best_batch_size(library: Library, requests: Sequence[list[str]]) -> int:
    """Return the library's fastest batch size on these requests."""
    library.batches(requests[:1], TEXTS_A_REQUEST)
    took = {size: min(library.batches(requests, size) for _ in range(2)) for size in BATCH_SIZES}
    return min(took, key=lambda size: took[size])


async def throughput(
    url: str, library: Library, requests: Sequence[list[str]], size: int, rounds: int, clients: int, encoding: str
) -> None:
    """Compare texts per second and print them."""
    timings = Timings()
    async with aiohttp.ClientSession() as session:
        client = Client(session, url, encoding)
        await client.send_all(requests, clients)
        for _ in range(rounds):
            timings.server.append(await client.send_all(requests, clients))
            timings.library.append(library.batches(requests, size))
    count = sum(map(len, requests))
    ours, theirs = (count / statistics.median(taken) for taken in (timings.server, timings.library))
    print(
        f"{TEXTS_A_REQUEST} texts a request, {clients} clients, {encoding}: {ours:.0f} texts/s;"
        f" library at batch size {size}: {theirs:.0f} texts/s; ratio {timings.ratio:.2f} (wanted: 1.2 or more)"
    )


async def latency(url: str, library: Library, rounds: int) -> None:
    """Compare the time of a single text and print it."""
    corpus = texts(20 * rounds, seed=2)
    ours: list[float] = []
    theirs: list[float] = []
    async with aiohttp.ClientSession() as session:
        client = Client(session, url, "float")
        for start in range(0, len(corpus), 20):
            ours += [await client.send_all([[text]], 1) for text in corpus[start : start + 20]]
            theirs += library.singles(corpus[start : start + 20])
    median, other = statistics.median(ours) * 1000, statistics.median(theirs) * 1000
    print(
        f"one text: p50 {median:.1f} ms; library in process: {other:.1f} ms; ratio {median / other:.2f} (wanted: 2 or less)"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--rounds", type=int, default=9, help="turns that each side gets")
    parser.add_argument("--requests", type=int, default=8, help="requests of a turn")
    parser.add_argument("--log", type=Path, default=Path("pooling-server.log"), help="the server's log")


def main(given: argparse.Namespace) -> int:
    """Compare, and print one line for each comparison."""
    library = Library(given.artifact.absolute() / manifest.MODEL)
    corpus = texts(given.requests * TEXTS_A_REQUEST, seed=1)
    requests = [corpus[start : start + TEXTS_A_REQUEST] for start in range(0, len(corpus), TEXTS_A_REQUEST)]
    size = best_batch_size(library, requests)
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with server.served(given.artifact.absolute(), given.log, "--accelerator", "cpu") as at:
        for clients, encoding in ((4, "base64"), (1, "base64"), (4, "float")):
            asyncio.run(throughput(at.url, library, requests, size, given.rounds, clients, encoding))
        asyncio.run(latency(at.url, library, given.rounds))
    # it sorts them by length: what no server can
    took = min(library.batches([corpus], size) for size in BATCH_SIZES)
    print(f"for comparison, the library with all {len(corpus)} texts at once: {len(corpus) / took:.0f} texts/s")
    return 0
