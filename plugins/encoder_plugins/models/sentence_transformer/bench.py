"""`python -m encoder_plugins.models.sentence_transformer.bench ARTIFACT`: a real server on the CPU against sentence-transformers.

The same texts on the same cores, in one run, taking turns: only the ratios mean anything on another machine. The
server is the engine image's own entry point; the library runs in this process, with the batch size that suits it best.
Imports torch and sentence-transformers: for developers and for `make bench`, in no image.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
from sentence_transformers import SentenceTransformer

from encoder_plugins.artifact import manifest
from encoder_plugins.models.sentence_transformer.parity import WORDS

TEXTS_A_REQUEST = 64
BATCH_SIZES = (8, 16, 32, 64)
START_SECONDS = 180


@dataclass
class Timings:
    """Seconds that each side took, turn by turn."""

    server: list[float] = field(default_factory=list)
    library: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times longer the library took: the median over the turns."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.server, self.library, strict=True))


def texts(count: int, seed: int) -> list[str]:
    """Return texts of 4 to 60 words, most of them short, as search passages and queries are."""
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=min(60, 4 + int(chosen.expovariate(1 / 18))))) for _ in range(count)]


@contextlib.contextmanager
def served(folder: Path, extra: Sequence[str]) -> Iterator[str]:
    """Run the engine's entry point on a free port; yield its address when it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["serve", str(folder), "--digest", manifest.read(folder).digest, "--name", "bench"]
    arguments += ["--port", str(port), "--accelerator", "cpu", "--", *extra]
    # a session of its own, so that the engine's second process ends with the first
    process = subprocess.Popen(
        [sys.executable, "-m", "encoder_plugins", *arguments], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        asyncio.run(_healthy(f"http://127.0.0.1:{port}", process))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(START_SECONDS):
        while process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the server ended with {process.returncode} before it was healthy")


class Asker:
    """Asks the server for the vectors of texts, over connections that stay open."""

    def __init__(self, session: aiohttp.ClientSession, url: str, encoding: str) -> None:
        self._session = session
        self._url = url
        self._encoding = encoding

    async def ask(self, some: Sequence[str]) -> None:
        """Ask for one request's texts, and read the answer."""
        body = {"model": "bench", "data": {"texts": list(some), "encoding": self._encoding}}
        async with self._session.post(f"{self._url}/pooling", json=body) as response:
            response.raise_for_status()
            await response.read()

    async def ask_all(self, requests: Sequence[Sequence[str]], clients: int) -> float:
        """Ask for all, ``clients`` at a time; return the seconds it took."""
        waiting = iter(requests)

        async def client() -> None:
            for request in waiting:
                await self.ask(request)

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return time.perf_counter() - start


@contextlib.asynccontextmanager
async def asker(url: str, encoding: str) -> AsyncIterator[Asker]:
    """Open a session with the server."""
    async with aiohttp.ClientSession() as session:
        yield Asker(session, url, encoding)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def encode_each(library: SentenceTransformer, batches: Sequence[list[str]], size: int) -> None:
    """Let the library answer the requests one after the other, as a server around it would."""
    for batch in batches:
        library.encode(batch, batch_size=size)


def best_batch_size(library: SentenceTransformer, batches: Sequence[list[str]]) -> int:
    """Return the library's fastest batch size on these requests."""
    encode_each(library, batches[:1], TEXTS_A_REQUEST)
    took = {size: min(timed(partial(encode_each, library, batches, size)) for _ in range(2)) for size in BATCH_SIZES}
    return min(took, key=lambda size: took[size])


async def throughput(
    url: str,
    library: SentenceTransformer,
    batches: Sequence[list[str]],
    size: int,
    rounds: int,
    clients: int,
    encoding: str,
) -> None:
    """Compare texts per second and print them."""
    timings = Timings()
    async with asker(url, encoding) as server:
        await server.ask_all(batches, clients)
        for _ in range(rounds):
            timings.server.append(await server.ask_all(batches, clients))
            timings.library.append(timed(partial(encode_each, library, batches, size)))
    count = sum(map(len, batches))
    ours, theirs = (count / statistics.median(taken) for taken in (timings.server, timings.library))
    print(
        f"{TEXTS_A_REQUEST} texts a request, {clients} clients, {encoding}: {ours:.0f} texts/s;"
        f" library at batch size {size}: {theirs:.0f} texts/s; ratio {timings.ratio:.2f} (wanted: 1.2 or more)"
    )


def sorted_whole(library: SentenceTransformer, batches: Sequence[list[str]]) -> None:
    """Print what the library does when it has all texts at once and sorts them by length: what no server can."""
    corpus = [text for batch in batches for text in batch]
    took = min(timed(partial(library.encode, corpus, batch_size=size)) for size in BATCH_SIZES)
    print(f"for comparison, the library with all {len(corpus)} texts at once: {len(corpus) / took:.0f} texts/s")


async def latency(url: str, library: SentenceTransformer, rounds: int) -> None:
    """Compare the time of a single text and print it."""
    corpus = texts(20 * rounds, seed=2)
    ours, theirs = [], []
    async with asker(url, "float") as server:
        for start in range(0, len(corpus), 20):
            for text in corpus[start : start + 20]:
                ours.append(await server.ask_all([[text]], 1))
            theirs += [timed(partial(library.encode, text)) for text in corpus[start : start + 20]]
    median, other = statistics.median(ours) * 1000, statistics.median(theirs) * 1000
    print(
        f"one text: p50 {median:.1f} ms; library in process: {other:.1f} ms; ratio {median / other:.2f} (wanted: 2 or less)"
    )


def main() -> None:
    """Run the comparison that the arguments ask for."""
    parser = argparse.ArgumentParser(description="A served sentence_transformer against the library, on this CPU.")
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--rounds", type=int, default=9, help="turns that each side gets")
    parser.add_argument("--requests", type=int, default=8, help="requests of a turn")
    parser.add_argument("extra", nargs="*", help="arguments for vLLM, after --")
    given = parser.parse_args()
    library = SentenceTransformer(str(given.artifact / manifest.MODEL), device="cpu")
    corpus = texts(given.requests * TEXTS_A_REQUEST, seed=1)
    batches = [corpus[start : start + TEXTS_A_REQUEST] for start in range(0, len(corpus), TEXTS_A_REQUEST)]
    size = best_batch_size(library, batches)
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with served(given.artifact.absolute(), given.extra) as url:
        for clients, encoding in ((4, "base64"), (1, "base64"), (4, "float")):
            asyncio.run(throughput(url, library, batches, size, given.rounds, clients, encoding))
        asyncio.run(latency(url, library, given.rounds))
        sorted_whole(library, batches)


if __name__ == "__main__":
    main()
