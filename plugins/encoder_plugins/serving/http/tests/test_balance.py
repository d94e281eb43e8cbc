"""Connections that several processes behind one port share evenly; uvicorn itself answers in the last test."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
import uvicorn

from encoder_plugins.serving.http import balance, connection, worker_counters
from encoder_plugins.serving.http.balance import Connections
from encoder_plugins.serving.http.tests.fake_server import JSON, Server
from encoder_plugins.serving.http.worker_counters import SharedCounters, SingleProcess
from encoder_plugins.serving.settings import CountersFile


@pytest.mark.parametrize(
    ("own", "all_counts", "expected"),
    [
        (2, [2, 1, 1], False),
        (2, [2, 0, 1], True),
        (1, [2, 0, 1], False),
        # a quarter of a mean of 16 or 24
        (19, [19, 15, 14], True),
        (18, [18, 16, 14], False),
        (27, [27, 24, 21], False),
        (28, [28, 23, 21], True),
        (5, [5], False),
        (0, [0, 0], False),
    ],
)
def test_a_process_may_have_a_little_more_than_the_others(own: int, all_counts: Sequence[int], expected: bool) -> None:
    assert balance.too_many(own, all_counts, 1 / 4) is expected


@pytest.mark.parametrize(
    ("own", "counts", "expected"),
    [
        # the engine has too many, though this process has not
        (1, {7: [1, 2, 2], 8: [1, 1, 1]}, True),
        (2, {7: [2, 1, 1], 8: [1, 1, 1]}, False),
        # the process has too many beside those of its engine
        (2, {7: [2, 0, 1], 8: [1, 1, 1]}, True),
        # the more they have, the less even they have to be: by a quarter between engines, by as many as their mean within one
        (5, {7: [5, 5, 6], 8: [5, 5, 3]}, False),
        (5, {7: [5, 6, 6], 8: [5, 5, 2]}, True),
        (8, {7: [8, 3, 4], 8: [5, 5, 5]}, False),
        (9, {7: [9, 3, 3], 8: [5, 5, 5]}, True),
        # those of another engine are not compared
        (2, {7: [2, 2, 1], 8: [5, 0, 0]}, False),
    ],
)
def test_engines_have_as_many_as_each_other_and_so_have_their_processes(
    own: int, counts: Mapping[int, Sequence[int]], expected: bool
) -> None:
    assert balance.is_crowded(7, own, counts) is expected


class Crowded(SingleProcess):
    """Notes what is published, and is crowded when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[int] = []
        self.crowded = False

    def publish_connections(self, connections: int) -> None:
        self.published.append(connections)

    def is_crowded(self) -> bool:
        return self.crowded


def test_a_connection_counts_until_its_end_is_decided() -> None:
    noted = Crowded()
    now = 0.0
    connections = Connections(noted, lambda: now)
    first, second = connections.open(), connections.open()
    now += 1
    assert (first.should_close(), noted.published) == (False, [1, 2])
    noted.crowded = True
    assert (first.should_close(), noted.published) == (True, [1, 2, 1])
    noted.crowded = False
    # what its client has read stays true, and it is not counted down again
    assert first.should_close()
    first.end()
    assert (second.should_close(), noted.published) == (False, [1, 2, 1])
    second.end()
    second.end()
    assert noted.published == [1, 2, 1, 0]


def test_a_connection_is_kept_for_half_a_second_however_many_there_are() -> None:
    crowded = Crowded()
    crowded.crowded = True
    now = 100.0
    opened = Connections(crowded, lambda: now).open()
    now += 0.5
    assert not opened.should_close()
    now += 0.1
    assert opened.should_close()


def test_an_old_connection_is_closed() -> None:
    now = 100.0
    opened = Connections(SingleProcess(), lambda: now).open()
    # five minutes
    now += 300
    assert not opened.should_close()
    now += 0.1
    assert opened.should_close()


def test_processes_compare_the_connections_of_those_that_listen(tmp_path: Path) -> None:
    file = worker_counters.new(3, tmp_path)
    one, other, late = (SharedCounters(file) for _ in range(3))
    # what does not listen yet has no connections, and publishes none
    late.publish_connections(5)
    one.open()
    one.publish_connections(6)
    assert (one.is_crowded(), late.is_crowded()) == (False, False)
    other.open()
    other.publish_connections(1)
    assert (one.is_crowded(), other.is_crowded()) == (True, False)
    other.publish_connections(3)
    assert (one.is_crowded(), other.is_crowded()) == (False, False)


PROCESSES, CLIENTS = 4, 8


def _serve(file: CountersFile, listening: socket.socket) -> None:
    """Serve in a process of its own, as an engine of its own; the answer is the number of the process."""
    os.getppid = os.getpid
    counters = SharedCounters(file)
    counters.open()
    server = Server(counters)
    http = connection.protocol(60, Connections(counters, time.monotonic))
    config = uvicorn.Config(server.application, lifespan="off", log_level="critical", http=http)
    uvicorn.Server(config).run([listening])


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yield the address of several processes, among which the kernel chooses."""
    sockets: list[socket.socket] = []
    for _ in range(PROCESSES):
        sockets.append(socket.socket())
        sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sockets[-1].bind(sockets[0].getsockname() if len(sockets) > 1 else ("127.0.0.1", 0))
        sockets[-1].listen(100)
    file = worker_counters.new(PROCESSES, folder)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_serve, args=(file, listening)) for listening in sockets]
    for process in processes:
        process.start()
    host, port = sockets[0].getsockname()
    for listening in sockets:
        listening.close()
    try:
        yield f"http://{host}:{port}/pooling"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


async def test_clients_that_keep_their_connections_come_to_all_processes_alike(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        sessions = [aiohttp.ClientSession(headers=JSON) for _ in range(CLIENTS)]

        async def send(session: aiohttp.ClientSession) -> tuple[str, bool]:
            """Return which process answered, and whether it closes the connection."""
            async with session.post(url, data=b"1") as response:
                assert (response.status, await response.read()) == (200, b"1")
                return response.headers["x-process"], response.headers.get("connection") == "close"

        async def send_all() -> tuple[Counter[str], int]:
            found = await asyncio.gather(*map(send, sessions))
            return Counter(process for process, _ in found), sum(closed for _, closed in found)

        try:
            async with asyncio.timeout(120):
                await _listening(tmp_path, sessions[0], url)
                answered, closed = await send_all()
                while closed or set(answered.values()) != {CLIENTS // PROCESSES}:
                    # none that was opened just now is closed
                    await asyncio.sleep(2 * balance.LEAST_SECONDS)
                    answered, closed = await send_all()
            # and there they stay, those opened last too
            await asyncio.sleep(2 * balance.LEAST_SECONDS)
            assert len(answered) == PROCESSES
            assert [await send_all() for _ in range(5)] == [(answered, 0)] * 5
        finally:
            for session in sessions:
                await session.close()


async def _listening(folder: Path, session: aiohttp.ClientSession, url: str) -> None:
    """Wait until all processes do: the last one removes their file."""
    while list(folder.iterdir()):
        await asyncio.sleep(0.05)
    while True:
        try:
            async with session.post(url, data=b"1"):
                return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.05)
