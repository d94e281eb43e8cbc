"""The permission to write to the API server, limited in time by leader election."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


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
