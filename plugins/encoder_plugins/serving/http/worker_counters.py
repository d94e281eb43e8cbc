"""Counts what several server processes behind one port have at work, as if they were one.

vLLM's API servers, and the engines that share a GPU, are processes of their own, each with a door of its own. Two things
concern them all: the limit of requests at work, which a client was promised as one number, and readiness: a port
that answers as soon as the first of them listens would be called ready with a part of its strength. Both are in one
small file that everyone maps into memory: two 32-bit numbers for each process, written by it alone and read by all.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from pathlib import Path
from typing import Protocol

from encoder_plugins.serving import limits

# native numbers, so that a process always reads a whole one
_NUMBER = 4


class Census(Protocol):
    """What a door tells about itself, and learns about all."""

    def open(self) -> None:
        """Say that this process listens from now on."""

    def publish(self, at_work: int) -> None:
        """Say how many requests this process has at work."""

    def total(self) -> int:
        """Return how many requests all have at work."""

    def complete(self) -> bool:
        """Tell whether all listen."""


class Alone:
    """The census of a server that is a single process."""

    def __init__(self) -> None:
        self._at_work = 0

    def open(self) -> None:
        """Say that this process listens from now on."""

    def publish(self, at_work: int) -> None:
        """Say how many requests this process has at work."""
        self._at_work = at_work

    def total(self) -> int:
        """Return how many requests all have at work."""
        return self._at_work

    def complete(self) -> bool:
        """Tell whether all listen."""
        return True


class Shared:
    """The census of several processes.

    Two that count at the same moment may both let one more in: the sum is exceeded by at most one for each process.
    """

    def __init__(self, settings: limits.Census) -> None:
        self._processes = settings.processes
        self._path = settings.path
        with open(settings.path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * _NUMBER * settings.processes)
        numbers = memoryview(self._memory).cast("i")
        self._listening, self._at_work = numbers[: settings.processes], numbers[settings.processes :]
        self._place: int | None = None
        self._complete = False

    def open(self) -> None:
        """Take the first free place; the last one to come removes the file's name, which nobody needs any more.

        Raises:
            RuntimeError: There are more processes than were announced.
        """
        with open(self._path, "r+b") as file:
            # released when the file is closed
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                self._place = list(self._listening).index(0)
            except ValueError:
                raise RuntimeError(f"more than {self._processes} server processes share {self._path}") from None
            self._listening[self._place] = 1
        if self.complete():
            Path(self._path).unlink(missing_ok=True)

    def publish(self, at_work: int) -> None:
        """Say how many requests this process has at work."""
        if self._place is not None:
            self._at_work[self._place] = at_work

    def total(self) -> int:
        """Return how many requests all have at work."""
        return sum(self._at_work)

    def listening(self) -> int:
        """Return how many processes listen."""
        return sum(self._listening)

    def complete(self) -> bool:
        """Tell whether all listen."""
        self._complete = self._complete or all(self._listening)
        return self._complete


def of(settings: limits.Census | None) -> Census:
    """Return the census that ``serve`` decided on."""
    return Alone() if settings is None else Shared(settings)


def new(processes: int, folder: Path | None = None) -> limits.Census:
    """Make the file for so many processes."""
    descriptor, path = tempfile.mkstemp(prefix="encoder-census-", dir=folder)
    os.ftruncate(descriptor, 2 * _NUMBER * processes)
    os.close(descriptor)
    return limits.Census(path=path, processes=processes)
