"""Which connections are closed behind an answer, so that the processes behind one port have about as many each.

The kernel gives a new connection to one of the processes by chance, and clients keep their connections: with eight of them and four engines,
an engine has none in 38 of 100 cases. A process with too many writes ``connection: close`` in an answer; its client opens another one
for its next request, which comes to a process by chance again, until all have as many. No request is lost that way.

Old connections are closed, too: those of before an autoscaler added a pod would never come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

# the parts of a mean by which engines, and the processes of an engine, may differ from the one with the fewest; one connection is always
# allowed. Processes that share many connections as evenly as they can do less at a time, which costs more than it gives
ENGINES_SHARE = 1 / 4
PROCESSES_SHARE = 1.0
# the age from which a connection may be closed to balance, so that a client opens at most so many where the same process always gets them:
# those that accept from one queue take turns by chance, and one may be faster than the others
LEAST_SECONDS = 0.5
# the age after which a connection is closed behind its next answer
MOST_SECONDS = 300.0


class Counters(Protocol):
    """The connections of all processes."""

    def publish_connections(self, connections: int) -> None:
        """Publish the number of connections of this process."""

    def is_crowded(self) -> bool:
        """Return whether this process has too many of all connections."""


def too_many(own: int, all_counts: Sequence[int], share: float) -> bool:
    """Return whether one of several has clearly more than the one with the fewest.

    Args:
        own: Its count.
        all_counts: Everyone's counts, its own among them.
        share: The part of the mean by which they may differ.
    """
    return own - min(all_counts) > max(1.0, share * sum(all_counts) / len(all_counts))


def is_crowded(own_engine: int, own: int, counts: Mapping[int, Sequence[int]]) -> bool:
    """Return whether a process has too many connections, because its engine has, or beside the others of its engine.

    Args:
        own_engine: The engine of the process.
        own: Its connections.
        counts: Of each engine, the connections of its processes.
    """
    engines = {engine: sum(processes) for engine, processes in counts.items()}
    return too_many(engines[own_engine], list(engines.values()), ENGINES_SHARE) or too_many(
        own, counts[own_engine], PROCESSES_SHARE
    )


class Connections:
    """The connections of this process."""

    def __init__(self, counters: Counters, clock: Callable[[], float]) -> None:
        """Count in ``counters``; ``clock`` returns seconds."""
        self._counters = counters
        self._clock = clock
        self._count = 0

    def open(self) -> Connection:
        """Return a connection that has been opened just now."""
        self._add(1)
        return Connection(self, self._clock())

    def should_close(self, opened: float) -> bool:
        """Return whether a connection is too old, or one too many and not just opened."""
        age = self._clock() - opened
        return age > MOST_SECONDS or (age > LEAST_SECONDS and self._counters.is_crowded())

    def remove(self) -> None:
        """Count one less."""
        self._add(-1)

    def _add(self, number: int) -> None:
        self._count += number
        self._counters.publish_connections(self._count)


class Connection:
    """One connection; it counts until it ends, or its end has been decided."""

    def __init__(self, connections: Connections, opened: float) -> None:
        self._connections = connections
        self._opened = opened
        self._counts = True

    def should_close(self) -> bool:
        """Return whether it is to be closed behind the answer that is sent now."""
        if self._counts and self._connections.should_close(self._opened):
            # at once, so that the answers beside this one see it
            self.end()
        return not self._counts

    def end(self) -> None:
        """Count no longer."""
        if self._counts:
            self._counts = False
            self._connections.remove()
