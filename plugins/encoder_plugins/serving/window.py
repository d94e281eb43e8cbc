"""How many tokens of one request the engine has at a time.

Whatever an engine's process takes from a queue, its steps wait for: both are Python. A request of many prompts that comes at once holds up
a step, and a short request in it, for as long as several steps take. So its prompts come as those before them are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Window:
    """Lets the prompts of one request pass, in the order in which one task brings them."""

    def __init__(self, most: Callable[[], int]) -> None:
        """Let pass as many tokens at a time as ``most`` returns for each prompt, and a longer prompt alone."""
        self._most = most
        self._inside = 0
        self._changed = asyncio.Event()

    async def enter(self, tokens: int) -> None:
        """Wait until a prompt of so many tokens may pass."""
        while self._inside and self._inside + tokens > self._most():
            self._changed.clear()
            await self._changed.wait()
        self._inside += tokens

    def leave(self, tokens: int, _task: object = None) -> None:
        """Note that a prompt of so many tokens has ended, whatever its end was; a task can call it back."""
        self._inside -= tokens
        self._changed.set()
