"""Bears with a source that fails: asks again as long as that makes sense, and then says what was wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from encoder_plugins.errors import PrepareError, Stalled
from encoder_plugins.prep.progress import Progress

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to bear with a source.

    Attributes:
        stall_seconds: Without a byte for so long, the attempt ends.
        attempts: Failures in a row, none of which brought a byte, before the attempt ends.
        backoff: Seconds before the second try; doubled each time.
        longest_wait: A source that asks to wait longer than this many seconds ends the attempt.
    """

    stall_seconds: float = 120.0
    attempts: int = 5
    backoff: float = 1.0
    longest_wait: float = 300.0

    @property
    def silence(self) -> float:
        """Seconds without a byte after which one connection is given up: a silent source is asked once more on a new one."""
        return self.stall_seconds / 2


class TryAgain(Exception):  # noqa: N818 - never leaves `Attempts.run`
    """A failure that another request may not meet."""

    def __init__(self, error: PrepareError, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait


class Attempts:
    """Repeats the requests to one source, and remembers when its last byte came."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._heard = time.monotonic()
        self._received = 0

    def hear(self, count: int) -> None:
        """Note that so many bytes came."""
        self._received += count
        self._heard = time.monotonic()

    def timed_out(self, what: str, host: str) -> Exception:
        """Return what to raise when a connection was silent for its time."""
        error = Stalled(f"{what}: no byte from {host} for {self.patience.stall_seconds:g} s")
        if time.monotonic() - self._heard >= self.patience.stall_seconds * 0.9:
            return error
        return TryAgain(error, wait=0.0)

    def run(self, request: Callable[[], _T], progress: Progress) -> _T:
        """Repeat a request as long as that makes sense.

        Raises:
            PrepareError: It did not help.
        """
        failures = 0
        self._heard = time.monotonic()
        while True:
            before = self._received
            try:
                return request()
            except TryAgain as again:
                failures = 1 if self._received > before else failures + 1
                wait = min(self.patience.backoff * 2 ** (failures - 1), 30.0) if again.wait is None else again.wait
                if failures >= self.patience.attempts or wait > self.patience.longest_wait:
                    raise again.error from again
                progress.note(f"{again.error}; next try in {wait:g} s")
                time.sleep(wait)
                if not isinstance(again.error, Stalled):
                    self._heard = time.monotonic()


def retry_after(value: str | None) -> float | None:
    """Read for how many seconds a source asks to be left alone, from its Retry-After: seconds, or a date."""
    text = (value or "").strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (until - datetime.now(UTC)).total_seconds()) if until.tzinfo else None
