"""Run several engines behind one port as if they were a single server.

The caller decides when the next engine is started: one after the other, so that none takes the cores from another that starts, or all at once
where engines take turns themselves (``turns``). A signal is forwarded to all; when one ends, all do. A second SIGINT (Ctrl-C) kills them.
"""

from __future__ import annotations

import contextlib
import os
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
        next_may_start: Callable[[int], bool],
        *,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        """Take what is to run.

        Args:
            commands: One command line for each engine.
            environment: Of all of them.
            next_may_start: Returns whether another engine may start beside the given number of engines, the first ones.
            stop_seconds: How long engines may take to stop after a signal.
        """
        self._commands = commands
        self._environment = dict(environment)
        self._next_may_start = next_may_start
        self._stop_seconds = stop_seconds
        self._running: list[subprocess.Popen[bytes]] = []
        # written by the signal handler, forwarded by the main flow: an engine that is being started just then is not in the list yet
        self._received: list[int] = []

    def run(self) -> int:
        """Run until one ends or a signal comes; return the exit status: 0 only after a signal that all obeyed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        try:
            while not self._received and not self._ended():
                if len(self._running) < len(self._commands) and self._next_may_start(len(self._running)):
                    self._start(self._commands[len(self._running)])
                time.sleep(POLL_SECONDS)
            if self._received:
                return self._stop()
            first = self._ended()[0]
            print(f"engine {first.args!r} ended with {first.returncode}: stopping all", file=sys.stderr)
            self._forward(signal.SIGTERM)
            self._stop()
            return first.returncode if first.returncode > 0 else 1
        finally:
            for process in self._running:
                if process.poll() is None:
                    process.kill()

    def _start(self, command: Sequence[str]) -> None:
        # the signal may have come while `next_may_start` was answering
        if not self._received:
            # a group of its own, so that a terminal's interrupt reaches it once, through us
            self._running.append(subprocess.Popen(command, env=self._environment, process_group=0))

    def _ended(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._running if process.poll() is not None]

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)

    def _forward(self, number: int) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _kill(self) -> None:
        """Kill the engines with all their processes: vLLM ignores a second signal."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def _stop(self) -> int:
        """Wait until all have ended, and forward the signals that come; return 0 when each ended as a signal requests, else 1."""
        end = time.monotonic() + self._stop_seconds
        forwarded = 0
        while len(self._ended()) < len(self._running):
            if self._received.count(signal.SIGINT) > 1:
                self._kill()
                return 1
            for number in self._received[forwarded:]:
                self._forward(number)
                forwarded += 1
            if time.monotonic() > end:
                return 1
            time.sleep(POLL_SECONDS)
        # an engine that has not installed its handlers yet is ended by the signal itself, which is a stop too
        obeyed = {0, *(-number for number in self._received)}
        return 0 if all(process.returncode in obeyed for process in self._running) else 1
