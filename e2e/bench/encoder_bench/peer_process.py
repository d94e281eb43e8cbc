"""A side of a comparison that runs in a process of its own, and several copies of one that share the device."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from encoder_bench import server
from encoder_bench.cells import CELL, READY
from encoder_bench.peers import PROCESSOR, Result
from encoder_bench.workload import Shape


class PeerProcess:
    """A running process of `encoder_bench.peers`."""

    def __init__(self, side: str, command: Sequence[str], log: Path, environment: Mapping[str, str], seconds: float):
        """Start it.

        Args:
            side: Its name, for messages.
            command: What runs it.
            log: Gets what it writes to standard error.
            environment: Its environment variables.
            seconds: In which it must have measured a shape.
        """
        self._side, self._log, self._seconds = side, log, seconds
        with log.open("w") as written:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written, text=True, env=environment
            )

    def wait_ready(self) -> None:
        """Return when it can measure."""
        self._read(READY, server.START_SECONDS)

    def measure(self, shape: Shape, size: int = 0) -> Result:
        """Return what it did with a shape; ``size`` is the library's batch size, 0 leaves it to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps([shape.words, shape.labels, size])}\n")
        self._process.stdin.flush()
        return Result(**json.loads(self._read('{"words"', self._seconds)))

    def stop(self) -> None:
        """End it: it ends itself where it has nothing more to read."""
        try:
            self._process.communicate(timeout=server.STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _read(self, start: str, seconds: float) -> str:
        assert self._process.stdout is not None
        # it stops a side that would never end: kernels tuned for each shape, say
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith(start):
                    return line
        finally:
            timer.cancel()
        raise RuntimeError(f"{self._side} ended with {self._process.wait()}: {last_line(self._log)}")


@contextlib.contextmanager
def running(processes: Sequence[PeerProcess]) -> Iterator[Sequence[PeerProcess]]:
    """Wait until all are ready, and stop them behind the block."""
    with ThreadPoolExecutor(len(processes)) as pool:
        try:
            list(pool.map(PeerProcess.wait_ready, processes))
            yield processes
        finally:
            list(pool.map(PeerProcess.stop, processes))


def measure_together(processes: Sequence[PeerProcess], shape: Shape) -> Result:
    """Return what all processes do with a shape at the same time, at the batch size at which one alone is fastest."""
    alone = processes[0].measure(shape)
    if len(processes) == 1:
        return alone
    with ThreadPoolExecutor(len(processes)) as pool:
        each = list(pool.map(lambda process: process.measure(shape, alone.size), processes))
    slowest, fastest = min(result.rate for result in each), max(result.rate for result in each)
    return replace(
        alone,
        rate=sum(result.rate for result in each),
        how=f"{alone.how}, {len(processes)} processes",
        notes={
            PROCESSOR: round(sum(result.notes[PROCESSOR] for result in each) / len(each), 3),
            "% slower the slowest process": round((fastest / slowest - 1) * 100, 1),
        },
    )


@contextlib.contextmanager
def started(
    command: Sequence[str], task: Mapping[str, Any], log: Path, environment: Mapping[str, str], seconds: float
) -> Iterator[Iterator[dict[str, Any]]]:
    """Start a process that reads its task, a line of JSON, and says that it is ready; gives what it then measures.

    Args:
        command: What runs it.
        task: Its task.
        log: Gets what it writes to standard error.
        environment: Its environment variables.
        seconds: In which it must be ready, and have measured.

    Returns:
        Its cells as they come; it begins to measure when the first is wanted.

    Raises:
        RuntimeError: It ended, or took too long; the message has the last line of its log.
    """
    with log.open("w") as written:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written, text=True, env=environment
        )
    assert process.stdin is not None
    assert process.stdout is not None
    to, lines = process.stdin, process.stdout

    def read(start: str) -> Iterator[str]:
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            yield from (line for line in lines if line.startswith(start))
        finally:
            timer.cancel()
        if status := process.wait():
            raise RuntimeError(f"{command[-1]} ended with {status}: {last_line(log)}")

    def cells() -> Iterator[dict[str, Any]]:
        to.write("measure\n")
        to.close()
        for line in read(CELL):
            yield json.loads(line.removeprefix(CELL))

    try:
        # one that has ended says in its log why
        with contextlib.suppress(BrokenPipeError):
            to.write(f"{json.dumps(task)}\n")
            to.flush()
        next(read(READY))
        yield cells()
    finally:
        process.kill()
        process.wait()


def last_line(log: Path) -> str:
    """Return the end of a log, for a message."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no log"
