"""Counts the requests in flight of several server processes behind one port, as if they were one process.

vLLM's API servers, and the engines that share a GPU, are processes of their own, each with an application of its own. Three things
concern them all: the limit of requests in flight, which clients know as one number; readiness: a port that answers as soon as
the first process listens would be called ready with a part of its strength; and who has more connections than the others. All are in one
small file that every process maps into memory: three 32-bit numbers for each process, written by it alone and read by all.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Protocol

from encoder_plugins.serving.http import balance
from encoder_plugins.serving.settings import CountersFile

# native numbers, so that a process always reads a whole one
_NUMBER = 4
# of each process: its engine, 0 until it listens; requests in flight; connections
_COLUMNS = 3


class WorkerCounters(balance.Counters, Protocol):
    """What a process publishes of itself, and reads of all."""

    def open(self) -> None:
        """Publish that this process listens from now on."""

    def publish(self, in_flight: int) -> None:
        """Publish the number of requests that this process has in flight."""

    def total(self) -> int:
        """Return the number of requests that all processes have in flight."""

    def of_engine(self) -> int:
        """Return the number of requests that the processes of this one's engine have in flight."""

    def complete(self) -> bool:
        """Return whether all processes listen."""


class SingleProcess:
    """The counters of a server that is a single process."""

    def __init__(self) -> None:
        self._in_flight = 0

    def open(self) -> None:
        """Publish that this process listens from now on."""

    def publish(self, in_flight: int) -> None:
        """Publish the number of requests that this process has in flight."""
        self._in_flight = in_flight

    def total(self) -> int:
        """Return the number of requests that all processes have in flight."""
        return self._in_flight

    def of_engine(self) -> int:
        """Return the number of requests that the processes of this one's engine have in flight."""
        return self._in_flight

    def complete(self) -> bool:
        """Return whether all processes listen."""
        return True

    def publish_connections(self, connections: int) -> None:
        """Publish the number of connections of this process."""

    def is_crowded(self) -> bool:
        """Return whether this process has too many of all connections."""
        return False


class SharedCounters:
    """The counters of several processes.

    Two that count at the same moment may both admit one more: the sum is exceeded by at most one for each process.
    """

    def __init__(self, file: CountersFile) -> None:
        self._processes = file.processes
        self._path = file.path
        with open(file.path, "r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), _COLUMNS * _NUMBER * file.processes)
        numbers = memoryview(self._memory).cast("i")
        columns = [numbers[column * file.processes :][: file.processes] for column in range(_COLUMNS)]
        self._engines, self._in_flight, self._connections = columns
        self._slot: int | None = None
        self._complete = False

    def open(self) -> None:
        """Take the first free slot; the last process to come removes the file's name, which nothing needs any more.

        Raises:
            RuntimeError: There are more processes than slots.
        """
        with open(self._path, "r+b") as file:
            # released when the file is closed
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                self._slot = list(self._engines).index(0)
            except ValueError:
                raise RuntimeError(f"more than {self._processes} server processes share {self._path}") from None
            # an engine's API servers have one parent
            self._engines[self._slot] = max(1, os.getppid())
        if self.complete():
            Path(self._path).unlink(missing_ok=True)

    def publish(self, in_flight: int) -> None:
        """Publish the number of requests that this process has in flight."""
        if self._slot is not None:
            self._in_flight[self._slot] = in_flight

    def total(self) -> int:
        """Return the number of requests that all processes have in flight."""
        return sum(self._in_flight)

    def of_engine(self) -> int:
        """Return the number of requests that the processes of this one's engine have in flight; 0 before this one listens."""
        if self._slot is None:
            return 0
        own = self._engines[self._slot]
        return sum(count for engine, count in zip(self._engines, self._in_flight, strict=True) if engine == own)

    def publish_connections(self, connections: int) -> None:
        """Publish the number of connections of this process."""
        if self._slot is not None:
            self._connections[self._slot] = connections

    def is_crowded(self) -> bool:
        """Return whether this process has too many of all connections."""
        if self._slot is None:
            return False
        counts: defaultdict[int, list[int]] = defaultdict(list)
        for engine, connections in zip(self._engines, self._connections, strict=True):
            if engine:
                counts[engine].append(connections)
        return balance.is_crowded(self._engines[self._slot], self._connections[self._slot], counts)

    def listening(self) -> int:
        """Return the number of processes that listen."""
        return sum(map(bool, self._engines))

    def complete(self) -> bool:
        """Return whether all processes listen."""
        self._complete = self._complete or all(self._engines)
        return self._complete


def counters_of(file: CountersFile | None) -> WorkerCounters:
    """Return the counters behind ``file``; those of a single process without one."""
    return SingleProcess() if file is None else SharedCounters(file)


def new(processes: int, folder: Path | None = None) -> CountersFile:
    """Create the file for ``processes`` processes."""
    descriptor, path = tempfile.mkstemp(prefix="encoder-counters-", dir=folder)
    os.ftruncate(descriptor, _COLUMNS * _NUMBER * processes)
    os.close(descriptor)
    return CountersFile(path=path, processes=processes)
