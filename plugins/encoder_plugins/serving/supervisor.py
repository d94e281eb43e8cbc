"""Runs several engines behind one port, as if they were a single server.

The engines are started one after the other: the first fills the cache of compiled graphs for the next, and vLLM measures a
GPU's memory at start, which only works while no other process takes any. A signal goes to all; when one ends, all do.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

# seconds; above the longest drain, below the operator's grace period
STOP_SECONDS = 80.0
POLL_SECONDS = 0.1


class Supervisor:
    """Starts commands, watches them, and stops them together."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        listening: Callable[[int], bool],
        *,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        """Take what is to run.

        Args:
            commands: One command line for each engine.
            environment: Of all of them.
            listening: Returns whether the given number of engines is ready.
            stop_seconds: How long engines may take to stop.
        """
        self._commands = commands
        self._environment = dict(environment)
        self._listening = listening
        self._stop_seconds = stop_seconds
        self._running: list[subprocess.Popen[bytes]] = []
        self._signal: int | None = None

    def run(self) -> int:
        """Run until an engine ends or a signal comes; return the exit status: 0 only after a signal that ended all of them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        try:
            while self._signal is None and not self._ended():
                if len(self._running) < len(self._commands) and self._listening(len(self._running)):
                    self._start(self._commands[len(self._running)])
                time.sleep(POLL_SECONDS)
            if self._signal is None:
                first = self._ended()[0]
                print(f"engine {first.args!r} ended with {first.returncode}: stopping all", file=sys.stderr)
                self._send(signal.SIGTERM)
            return self._wait()
        finally:
            for process in self._running:
                if process.poll() is None:
                    process.kill()

    def _start(self, command: Sequence[str]) -> None:
        # a group of its own, so that a terminal's interrupt reaches it once, through us
        process = subprocess.Popen(command, env=self._environment, process_group=0)
        self._running.append(process)
        if self._signal is not None and process.poll() is None:
            # it came while the process was being started, and was sent to the others only
            process.send_signal(self._signal)

    def _ended(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._running if process.poll() is not None]

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self._send(number)

    def _send(self, number: int) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _wait(self) -> int:
        end = time.monotonic() + self._stop_seconds
        for process in self._running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                return 1
        statuses = [process.returncode for process in self._running]
        if self._signal is None:
            return next((status for status in statuses if status > 0), 1)
        # one that had no handler yet was ended by the signal itself
        wanted = {0, -self._signal, 128 + self._signal}
        return 0 if wanted.issuperset(statuses) else 1
