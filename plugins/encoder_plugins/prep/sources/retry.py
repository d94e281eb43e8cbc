"""Repeat failed requests to a source by a retry policy, and end with the reason of the last failure."""

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
class RetryPolicy:
    """How often and how long requests to a source are repeated.

    Attributes:
        stall_seconds: Seconds without a byte after which the attempt ends.
        attempts: Failures in a row, without a new byte received in between, before the attempt ends.
        backoff: Seconds before the second try; doubled each time.
        longest_wait: A Retry-After of more than this many seconds ends the attempt.
    """

    stall_seconds: float = 120.0
    attempts: int = 5
    backoff: float = 1.0
    longest_wait: float = 300.0

    @property
    def silence(self) -> float:
        """Seconds without a byte after which one connection is given up; the request is repeated once on a new one."""
        return self.stall_seconds / 2


class TryAgain(Exception):  # noqa: N818 - never leaves `Retries.run`
    """A failure that another request may not meet."""

    def __init__(self, error: PrepareError, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait


class Retries:
    """Repeats the requests to one source, and records when its last byte was received."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self._last_byte = time.monotonic()
        self._received = 0

    def count_bytes(self, new: int) -> None:
        """Record that bytes were received, of which ``new`` had not been received before."""
        self._received += new
        self._last_byte = time.monotonic()

    def timed_out(self, what: str, host: str) -> Exception:
        """Return what to raise when a connection was silent for its time."""
        error = Stalled(f"{what}: no byte from {host} for {self.policy.stall_seconds:g} s")
        if time.monotonic() - self._last_byte >= self.policy.stall_seconds * 0.9:
            return error
        return TryAgain(error, wait=0.0)

    def run(self, request: Callable[[], _T], progress: Progress) -> _T:
        """Repeat a request as the policy allows.

        Raises:
            PrepareError: The last failure.
        """
        failures = 0
        self._last_byte = time.monotonic()
        while True:
            before = self._received
            try:
                return request()
            except TryAgain as again:
                failures = 1 if self._received > before else failures + 1
                wait = min(self.policy.backoff * 2 ** (failures - 1), 30.0) if again.wait is None else again.wait
                if failures >= self.policy.attempts or wait > self.policy.longest_wait:
                    raise again.error from again
                progress.note(f"{again.error}; next try in {wait:g} s")
                time.sleep(wait)
                if not isinstance(again.error, Stalled):
                    self._last_byte = time.monotonic()


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which has seconds or a date; None where it has neither, or leaves no time."""
    text = (value or "").strip()
    if text.isdecimal():
        return float(text) or None
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    left = (until - datetime.now(UTC)).total_seconds() if until.tzinfo else 0.0
    return left if left > 0 else None
