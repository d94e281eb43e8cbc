"""Waiting that always ends, and says what it waited for."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from encoder_node.errors import WaitTimeoutError

T = TypeVar("T")
PAUSE = 0.1


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    *,
    seconds: float,
    every: float = PAUSE,
    log: Path | None = None,
    check: Callable[[], None] | None = None,
) -> T:
    """Calls `probe` until it answers something true, and returns that.

    Args:
        what: What is waited for; it goes into the message.
        probe: Answers something true when it is so. Any other answer goes into the message, unless it is just False or None.
        seconds: The longest to wait.
        every: Seconds between two calls.
        log: The file that explains a failure.
        check: Called on each turn; it raises when waiting has become pointless.

    Raises:
        WaitTimeoutError: It did not happen in time.
    """
    end = time.monotonic() + seconds
    while not (found := probe()):
        if check is not None:
            check()
        if time.monotonic() > end:
            last = "" if found is None or found is False else f" (last seen: {found!r})"
            raise WaitTimeoutError(f"{what}: not so after {seconds:g} s{last}", log=log)
        time.sleep(every)
    return found


def take(file: IO[str], what: str, *, seconds: float, mode: int = fcntl.LOCK_EX) -> None:
    """Takes the lock of an open file, which its end, or that of the process, gives back.

    Raises:
        WaitTimeoutError: Other processes still held it at the end of the time.
    """

    def taken() -> bool:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    wait_for(what, taken, seconds=seconds)


@contextmanager
def exclusive(lock: Path, what: str, *, seconds: float) -> Iterator[None]:
    """Lets one process at a time do `what`.

    Raises:
        WaitTimeoutError: Another process still held the lock at the end of the time.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        try:
            take(file, what, seconds=seconds)
        except WaitTimeoutError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise WaitTimeoutError(
                f"{what}: process {holder} has been at it for {seconds:g} s; try again when it is done"
            ) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
