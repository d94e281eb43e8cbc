"""Lets a server that received SIGTERM finish the requests that it has begun.

vLLM 0.32 stops the engine before its requests are done, whatever ``--shutdown-timeout`` says: each of them gets a 500. So SIGTERM is kept
from it until no request is in flight, and then passed on as SIGINT, which it treats the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

# the operator's grace period must be longer
LONGEST_SECONDS = 60.0
# a client with an open connection may be about to send
QUIET_SECONDS = 1.0


class Drain:
    """Counts the requests in flight, and delays the end of the server until there are none.

    Attributes:
        in_flight: The number of requests in flight.
        stopping: Whether SIGTERM has come.
    """

    def __init__(self, *, longest: float = LONGEST_SECONDS, quiet: float = QUIET_SECONDS) -> None:
        self.in_flight = 0
        self.stopping = False
        self._longest = longest
        self._quiet = quiet
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def take_over(self) -> None:
        """Handle SIGTERM from now on; to be called in the server's event loop, after vLLM has set its handlers."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count one request for as long as the block runs."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._ended.set()

    def _stop(self) -> None:
        if not self.stopping:
            self.stopping = True
            self._task = asyncio.get_running_loop().create_task(self._pass_on())

    async def _pass_on(self) -> None:
        try:
            async with asyncio.timeout(self._longest):
                await self.quiet()
        except TimeoutError:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    async def quiet(self) -> None:
        """Return when no request has been in flight, and none has come, for a while."""
        while True:
            self._ended.clear()
            try:
                await asyncio.wait_for(self._ended.wait(), self._quiet)
            except TimeoutError:
                if not self.in_flight:
                    return
