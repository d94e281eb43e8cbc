"""Waiting with a deadline, for tests and tools: what was waited for is part of the failure."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NotInTimeError(AssertionError):
    """A condition did not come true within its time."""


def wait_for(what: str, probe: Callable[[], T | None], *, seconds: float, every: float = 0.2) -> T:
    """Call `probe` until it returns something true, and return that.

    Args:
        what: the condition, in words, for the failure's message.
        probe: returns a true value when the condition holds; its last falsy value is part of the message.
        seconds: the deadline.
        every: seconds between two calls.

    Raises:
        NotInTimeError: when the deadline has passed.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise NotInTimeError(f"{what}: not within {seconds:g} s (last seen: {found!r})")
        time.sleep(every)
