"""Clients of a server: each sends its next request when it has the last one's answer; several processes of them.

`vllm bench serve` was tried first: it adds `truncate_prompt_tokens` to every body, which a strict server refuses, takes no
JSON object as a prompt from a file, and one process of it is itself the limit at some hundred requests a second.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import uvloop


@dataclass(frozen=True, slots=True)
class Load:
    """What clients saw.

    Attributes:
        requests: Answered in the measured time.
        seconds: The measured time.
        latencies: Seconds of each of them.
        all_requests: Answered before, in and behind the measured time.
    """

    requests: int
    seconds: float
    latencies: tuple[float, ...]
    all_requests: int

    def percentile(self, share: float) -> float:
        """Return the seconds within which this share of the requests was answered."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    @property
    def median(self) -> float:
        """Seconds of the request in the middle."""
        return statistics.median(self.latencies) if self.latencies else float("nan")


class Workers:
    """Processes for clients, ready before the first request is sent."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = multiprocessing.get_context("spawn").Pool(count)

    def __enter__(self) -> Workers:
        self._pool.map(_ready, range(self.count), chunksize=1)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def run(self, url: str, bodies: Sequence[bytes], clients: int, seconds: float, warm: float) -> Load:
        """Send for ``warm`` and then ``seconds`` seconds; what was answered in the latter counts.

        Args:
            url: Where to post.
            bodies: Sent in turn, each process from another place on.
            clients: Requests at the same time, all together.
            seconds: The measured time.
            warm: Seconds before it.

        Raises:
            RuntimeError: A request was not answered with 200.
        """
        count = max(1, min(self.count, clients))
        shares = [len(range(number, clients, count)) for number in range(count)]
        start = time.time() + 0.3
        arguments = [(url, list(bodies), share, number, start, warm, seconds) for number, share in enumerate(shares)]
        found = self._pool.starmap(_send, arguments, chunksize=1)
        latencies = tuple(latency for one, _ in found for latency in one)
        return Load(len(latencies), seconds, latencies, sum(count for _, count in found))


class Clients:
    """Clients in processes of their own, for one measurement."""

    def __init__(self, url: str, bodies: Sequence[bytes], clients: int, processes: int) -> None:
        """Take what they send: as ``Workers.run``, and how many processes there are at most."""
        self._url = url
        self._bodies = bodies
        self._clients = clients
        self._processes = max(1, min(processes, clients))

    def run(self, seconds: float, warm: float) -> Load:
        """Start them, and send; as ``Workers.run``."""
        with Workers(self._processes) as workers:
            return workers.run(self._url, self._bodies, self._clients, seconds, warm)


def _ready(number: int) -> int:
    time.sleep(0.2)
    return number


def _send(
    url: str, bodies: list[bytes], clients: int, number: int, start: float, warm: float, seconds: float
) -> tuple[list[float], int]:
    return uvloop.run(send_all(url, bodies, clients, number, start, warm, seconds))


async def send_all(
    url: str, bodies: list[bytes], clients: int, number: int, start: float, warm: float, seconds: float
) -> tuple[list[float], int]:
    """Send from so many clients of this process.

    Args:
        url: Where to post.
        bodies: Sent in turn.
        clients: Requests at the same time.
        number: Of this process: each begins at another body.
        start: When to begin, as `time.time` has it, the same for all processes.
        warm: Seconds before the measured time.
        seconds: The measured time.

    Returns:
        The seconds of each request answered in the measured time, and how many were answered at all.

    Raises:
        RuntimeError: A request was not answered with 200.
    """
    latencies: list[float] = []
    end = start + warm + seconds
    place = number * 7919
    answered = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal place, answered
        while time.time() < end:
            place += 1
            began = time.time()
            async with session.post(url, data=bodies[place % len(bodies)], headers=HEADERS) as response:
                content = await response.read()
                if response.status == 503:
                    await asyncio.sleep(0.01)
                    continue
                if response.status != 200:
                    raise RuntimeError(f"{response.status}: {content[:300]!r}")
            answered += 1
            now = time.time()
            if start + warm <= now <= end:
                latencies.append(now - began)

    await asyncio.sleep(max(0.0, start - time.time()))
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return latencies, answered


HEADERS = {"content-type": "application/json"}


def body(data: object) -> bytes:
    """Return a request's body."""
    return json.dumps({"model": "bench", "data": data}).encode()
