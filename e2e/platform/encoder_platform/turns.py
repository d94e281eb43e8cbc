"""Whose turn it is: most cases run beside others on one cluster, and one that stops what all of them use runs alone."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encoder_node.waiting import take


@contextmanager
def turn(folder: Path, *, alone: bool, seconds: float) -> Iterator[None]:
    """Take a turn among all processes that use the folder: beside others, or alone.

    One that wants to be alone waits for those that run and keeps later ones waiting. The kernel ends the turn of a process that ends.

    Args:
        folder: Where the locks are.
        alone: Whether nobody else may have a turn meanwhile.
        seconds: The longest to wait for those before.

    Raises:
        WaitTimeoutError: Others have not ended in that time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "entry").open("w") as entry, (folder / "room").open("w") as room:
        # one that waits for the room keeps later ones at the entry
        take(entry, "a turn", seconds=seconds)
        take(room, "a turn", seconds=seconds, mode=fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(entry, fcntl.LOCK_UN)
        yield
