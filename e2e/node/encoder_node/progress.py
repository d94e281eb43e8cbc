"""Progress on the terminal: one line per step, with the time it took. The demo prints its lines with this, too."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

TIME_COLUMN = 72
"""The time ends here; a longer text pushes it to the right."""


def line(word: str, text: str, seconds: float | None = None) -> str:
    """Returns one line: two spaces, the part in question, what happened to it, how long it took."""
    start = f"  {word:<10} {text}"
    if seconds is None:
        return start
    took = duration(seconds)
    return f"{start:<{TIME_COLUMN - len(took) - 1}} {took}"


def duration(seconds: float) -> str:
    """Returns a time in a readable form: `0.4 s`, `12 s`, `3 min 20 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def say(word: str, text: str, seconds: float | None = None) -> None:
    """Prints one line."""
    print(line(word, text, seconds), flush=True)


@dataclass(slots=True)
class Clock:
    """Seconds since a piece of work began."""

    began: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Returns the seconds so far."""
        return time.monotonic() - self.began
