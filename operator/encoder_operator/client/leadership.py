"""The permission to write to the API server, limited in time by leader election."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import httpx2

from encoder_operator.client.errors import NotLeader

_T = TypeVar("_T")
# what the write is whose task this is
_WRITE: ContextVar[str] = ContextVar("write", default="")
# httpcore's names for the moments before it sends a part of a request
_BEFORE_SENDING = ("http11.send_request_headers.started", "http11.send_request_body.started")


def since_boot() -> float:
    """Return the seconds since boot, on a clock that is never adjusted and that includes the time the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """Until when this operator may write. Without leader election there is no limit."""

    def __init__(self, clock: Callable[[], float] = since_boot) -> None:
        self._clock = clock
        self._until = math.inf

    def remaining(self) -> float:
        """Return for how many more seconds writes are allowed; zero or less if they are not."""
        return self._until - self._clock()

    def grant(self, until: float) -> None:
        """Allow writes until a time on this object's clock."""
        self._until = until

    def now(self) -> float:
        """Return the current time of this object's clock."""
        return self._clock()

    async def send(self, write: str, sending: Coroutine[Any, Any, _T]) -> _T:
        """Await a write while the Lease is renewed, so that a slow connection cannot deliver the write of a former leader.

        Args:
            write: What it is, for the error's message.
            sending: Sends it, by a client whose requests pass `guard`.

        Raises:
            NotLeader: The Lease ended before the response arrived.
        """
        context = copy_context()
        context.run(_WRITE.set, write)
        task = asyncio.create_task(sending, context=context)
        try:
            while not task.done() and (left := self.remaining()) > 0:
                await asyncio.wait((task,), timeout=left)
        finally:
            given_up = task.cancel()
        if given_up:
            await asyncio.wait((task,))
            raise _lost(write)
        return task.result()

    async def guard(self, request: httpx2.Request) -> None:
        """Have the Lease checked again right before each part of a write is sent (a request hook of httpx).

        A process that was stopped between its decision and its request continues with the request, and reaches its own
        timers only later.
        """
        if write := _WRITE.get():

            async def check(step: str, _: dict[str, Any]) -> None:
                if step in _BEFORE_SENDING and self.remaining() <= 0:
                    raise _lost(write)

            request.extensions = {**request.extensions, "trace": check}


def _lost(write: str) -> NotLeader:
    return NotLeader(f"{write}: aborted because the lease was not renewed in time")
