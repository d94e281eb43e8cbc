"""Lets a server that received SIGTERM, or SIGINT (Ctrl-C), finish the requests that it has begun.

vLLM 0.32 stops the engine before its requests are done, whatever ``--shutdown-timeout`` says: each of them gets a 500. So its handlers of
both signals are replaced, and the server is ended when no request is in flight.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# the operator's grace period must be longer
LONGEST_SECONDS = 60.0
# a client with an open connection may be about to send
QUIET_SECONDS = 1.0
# ends a server at once (`interrupts`); one that has no handler yet is ended by the kernel's default action
END_NOW = signal.SIGUSR2
# what vLLM calls the processes of an engine
ENGINE_PROCESSES = ("EngineCore", "VllmWorker")


class Drain:
    """Counts the requests in flight, and delays the end of the server until there are none.

    Attributes:
        in_flight: The number of requests in flight.
        stopping: Whether a signal has come.
    """

    def __init__(self, *, longest: float = LONGEST_SECONDS, quiet: float = QUIET_SECONDS) -> None:
        self.in_flight = 0
        self.stopping = False
        self._longest = longest
        self._quiet = quiet
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._interrupts = 0

    def take_over(self, end: Callable[[bool], None]) -> None:
        """Handle signals from now on; to be called in the server's event loop, after vLLM has set its handlers.

        Args:
            end: Ends the server; its argument says whether at once, without an answer to the requests in flight.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, end)
        loop.add_signal_handler(signal.SIGINT, self._interrupt, end)
        loop.add_signal_handler(END_NOW, self._end_now, end)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count one request for as long as the block runs."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._ended.set()

    def refused(self) -> None:
        """Note a request that has come and is not begun: its client tries again, and a server that closed its socket now would break that off."""
        self._ended.set()

    def _interrupt(self, end: Callable[[bool], None]) -> None:
        # SIGTERM is not counted: vLLM sends it to its API servers after the first Ctrl-C, which they have got, too
        self._interrupts += 1
        if self._interrupts > 1:
            self._end_now(end)
        self._stop(end)

    def _end_now(self, end: Callable[[bool], None]) -> None:
        self.stopping = True
        end(True)

    def _stop(self, end: Callable[[bool], None]) -> None:
        if not self.stopping:
            self.stopping = True
            self._task = asyncio.get_running_loop().create_task(self._end_when_quiet(end))

    async def _end_when_quiet(self, end: Callable[[bool], None]) -> None:
        try:
            async with asyncio.timeout(self._longest):
                await self.quiet()
        except TimeoutError:
            pass
        end(False)

    async def quiet(self) -> None:
        """Return when no request has been in flight, and none has come, for a while."""
        while True:
            self._ended.clear()
            try:
                await asyncio.wait_for(self._ended.wait(), self._quiet)
            except TimeoutError:
                if not self.in_flight:
                    return


def leave_interrupts_to_the_server() -> None:
    """Ignore SIGINT in a process of an engine: Ctrl-C reaches all processes of a terminal, and the server ends its engine when it is quiet."""
    if multiprocessing.current_process().name.startswith(ENGINE_PROCESSES):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
