"""Lets a server that was told to stop finish what it has begun.

vLLM 0.32 takes down the threads that write answers before its requests are done, whatever ``--shutdown-timeout`` says:
each gets a 500. So SIGTERM is kept from it until nothing is at work, and then passed on as SIGINT, which it treats the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

# the operator's grace period must be longer
LONGEST_SECONDS = 60.0
# a client that held on to its connection may be just about to send
QUIET_SECONDS = 1.0


class Drain:
    """Knows how many requests are at work, and whether the server is about to stop."""

    def __init__(self, *, longest: float = LONGEST_SECONDS, quiet: float = QUIET_SECONDS) -> None:
        self.at_work = 0
        self.stopping = False
        self._longest = longest
        self._quiet = quiet
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def take_over(self) -> None:
        """Handle SIGTERM from now on; to be called in the server's loop, when vLLM has set its handlers."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count one request for as long as the block runs."""
        self.at_work += 1
        self._changed.set()
        try:
            yield
        finally:
            self.at_work -= 1
            self._changed.set()

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
        """Return when nothing has been at work, and nothing came, for a while."""
        while True:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), self._quiet)
            except TimeoutError:
                if not self.at_work:
                    return
