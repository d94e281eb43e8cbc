"""Progress reports of prep: one JSON object per line on standard output, or sentences on a terminal.

The operator reads the last such line, so lines may be lost; users read them with kubectl logs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

Phase = Literal["waiting", "listing", "download", "unpack", "convert", "check", "reference", "seal", "publish", "clean"]
Emit = Callable[[dict[str, object]], None]

# often enough to watch, seldom enough that a log of a large download stays short
_SECONDS_BETWEEN_LINES = 2.0


def to_stdout(line: dict[str, object]) -> None:
    """Print one line."""
    print(json.dumps(line), flush=True)


def to_terminal(line: dict[str, object]) -> None:
    """Print the same for a terminal: progress on standard error, the result on standard output."""
    if (phase := line.get("phase")) is None:
        print(f"{line['code']}: {line['message']}" + (f"\n{line['digest']}" if "digest" in line else ""), flush=True)
        return
    done, total, rate = (float(str(line.get(name, 0))) / 1e6 for name in ("bytes", "total", "bytesPerSecond"))
    amount = f"  {done:.1f} of {total:.1f} MB" if total else ""
    amount += f", {rate:.1f} MB/s" if rate and done < total else ""
    note = f"  {line['message']}" if "message" in line else ""
    print(f"{phase}{amount}{note}", file=sys.stderr, flush=True)


class Progress:
    """Counts bytes of a phase and emits a line at its start, now and then, and at its end."""

    def __init__(self, emit: Emit = to_stdout) -> None:
        self._emit = emit
        self._enter("listing", 0)

    def start(self, phase: Phase, total: int = 0, **details: object) -> None:
        """Enter a phase; ``total`` is its bytes, 0 where it has none."""
        self._enter(phase, total)
        self._report(**details)

    def note(self, message: str, **details: object) -> None:
        """Report a message about the current phase."""
        self._report(message=message, **details)

    def add(self, count: int) -> None:
        """Count bytes that were worked on now."""
        self._moved += count
        self.skip(count)

    def skip(self, count: int) -> None:
        """Count bytes that were there already; negative where some have to be fetched again."""
        self._done += count
        if self._done == self._total or time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._report()

    def _enter(self, phase: Phase, total: int) -> None:
        self._phase: Phase = phase
        self._done, self._total, self._moved = 0, total, 0
        self._rate = 0
        self._last = time.monotonic()

    def _report(self, **details: object) -> None:
        now = time.monotonic()
        # the rate since the last line; lines that follow each other at once do not show it
        if now - self._last >= _SECONDS_BETWEEN_LINES / 2 or not self._rate:
            self._rate = round(self._moved / max(now - self._last, 0.001))
            self._moved, self._last = 0, now
        line = {"phase": self._phase, "bytes": self._done, "total": self._total}
        if self._total:
            line["bytesPerSecond"] = self._rate
        self._emit({**line, "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), **details})
