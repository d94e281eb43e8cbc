"""Token bucket: allows bursts and limits the rate after them."""

from __future__ import annotations


class TokenBucket:
    """A bucket that is full at first.

    Args:
        burst: Number of tokens in a full bucket.
        period: Seconds until one more token.
    """

    __slots__ = ("_at", "_burst", "_period", "_tokens")

    def __init__(self, burst: int, period: float) -> None:
        self._burst, self._period = burst, period
        self._tokens = float(burst)
        self._at: float | None = None

    @property
    def tokens(self) -> float:
        """Return the number of tokens after the last call of `take`."""
        return self._tokens

    def take(self, now: float) -> float:
        """Take a token and return 0, or take none and return the seconds until there is one; `now` is in seconds."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) / self._period)
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) * self._period
        self._tokens -= 1
        return 0.0
