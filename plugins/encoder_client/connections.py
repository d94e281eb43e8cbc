"""Connections that threads take in turns.

A pool of httpx is not used: where it looks for a connection that the server has closed, it may close one on which another thread has
just received an answer (httpcore 1.0.9, ``has_expired``), and that thread then waits until its timeout. Here no two threads ever use the
same pool at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from encoder_client.settings import Settings


class Connections:
    """As many connections as a client may have, each used by one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._verify = settings.verify()
        self._idle: list[httpx.Client] = []
        self._closed = False
        self.begin()

    def begin(self) -> None:
        """Have no connection yet; in a forked process, too, whose own they are not: it would read answers to its parent's requests."""
        # a lock that another thread of the parent had is never released in its child
        self._slots = threading.Semaphore(self._settings.concurrency)
        self._lock = threading.Lock()
        idle, self._idle = self._idle, []
        for each in idle:
            # the parent's socket stays open
            each.close()

    @contextmanager
    def take(self) -> Iterator[httpx.Client]:
        """Lend a connection for the block; waits until there is one.

        Raises:
            RuntimeError: They were closed.
        """
        with self._slots:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the client is closed")
                # the one that was used last is the least likely to have been closed by the server
                lent = self._idle.pop() if self._idle else None
            lent = lent or self._new()
            try:
                yield lent
            finally:
                with self._lock:
                    closed = self._closed
                    if not closed:
                        self._idle.append(lent)
                if closed:
                    lent.close()

    def close(self) -> None:
        """Close those that are idle now, and each other one when it is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()

    def _new(self) -> httpx.Client:
        return httpx.Client(
            headers=self._settings.all_headers(),
            timeout=self._settings.timeouts(),
            limits=self._settings.limits(connections=1),
            verify=self._verify,
        )
