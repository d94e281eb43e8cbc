"""Until when this operator may write to the API server."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def since_boot() -> float:
    """Return seconds on a clock that nobody sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """Until when this operator may write."""

    def __init__(self, clock: Callable[[], float] = since_boot) -> None:
        self._clock = clock
        self._until = math.inf

    def remaining(self) -> float:
        """Return for how many seconds writing is allowed; zero or less for not at all."""
        return self._until - self._clock()

    def grant(self, until: float) -> None:
        """Allow writing until then, on this object's clock."""
        self._until = until

    def now(self) -> float:
        """Return what the clock says."""
        return self._clock()
