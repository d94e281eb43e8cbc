"""Runs a processor by hand, one round of prompts after the other, where no event loop waits for the engine. Pure.

``advance`` runs a processor's coroutine until it wants something encoded, and hands out the prompts; the next call hands in what the
engine made of them. A coroutine is only ever advanced by one thread at a time, but each time it may be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from encoder_plugins.serving.processor import Part, Prompt, Response

if TYPE_CHECKING:
    from torch import Tensor

ResultT = TypeVar("ResultT")

Running: TypeAlias = "Coroutine[Round, list[Tensor] | None, Response]"


@dataclass(frozen=True, slots=True)
class Round:
    """Prompts that a processor waits for.

    Attributes:
        prompts: At least one.
        lora: The adapter; None for none.
    """

    prompts: Sequence[Prompt]
    lora: str | None

    @property
    def tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.tokens for prompt in self.prompts)


class ManualEngine:
    """The engine of a processor that is advanced by hand."""

    concurrent = False

    async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[Tensor]:
        """Suspend the processor until its next ``advance`` brings one tensor for each prompt."""
        return await _suspend(Round(prompts, lora)) if prompts else []

    async def encode_parts(self, parts: Sequence[Part], *, lora: str | None = None) -> list[Tensor]:
        """Do the same for the prompts of all parts, which are one round."""
        return await self.encode([prompt for part in parts for prompt in part.make()], lora=lora)

    async def compute(
        self, function: Callable[..., ResultT], *arguments: object, size: int, threads: Executor | None = None
    ) -> ResultT:
        """Call ``function(*arguments)`` in the thread that advances the processor."""
        return function(*arguments)


ENGINE = ManualEngine()


def advance(running: Running, pooled: list[Tensor] | None = None) -> Round | Response:
    """Run a processor until it waits or has finished; raises what it raises.

    Args:
        running: What ``Processor.run`` returned, called with ``ENGINE``.
        pooled: One tensor for each prompt of the round before; None at first.
    """
    try:
        return running.send(pooled)
    except StopIteration as finished:
        response: Response = finished.value
        return response


@coroutine
def _suspend(wanted: Round) -> Generator[Any, Any, list[Tensor]]:
    pooled: list[Tensor] = yield wanted
    return pooled
