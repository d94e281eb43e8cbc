"""vLLM's scheduler, with a bound on steps on a CPU, and where long requests meet short ones (``serving.steps``)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from encoder_plugins.serving import graceful_shutdown, settings, steps


class ShortStepScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler of an engine that takes no step before the last one has ended: vLLM's own for pooling models."""

    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what vLLM's scheduler takes."""
        super().__init__(*args, **kwargs)
        if settings.VARIABLE in os.environ:
            # in a process that was forked, vLLM has set its handlers and calls no plugin again
            graceful_shutdown.leave_interrupts_to_the_server()
        self._most: int = self.max_num_scheduled_tokens
        device = self.vllm_config.device_config.device_type
        self._enough = steps.ENOUGH_TOKENS.get(device, self._most)
        self._for_long = steps.LONG_TOKENS[device]
        self._long: set[str] = set()
        self._after_long = False
        self._last_short = float("-inf")
        self._taken_back = False

    def add_request(self, request: Request) -> None:
        """Take a request, and remember whether it is a long one's."""
        extra = request.pooling_params.extra_kwargs if request.pooling_params else None
        if steps.is_long(extra):
            self._long.add(request.request_id)
        elif steps.is_short(extra):
            self._last_short = time.monotonic()
        super().add_request(request)

    def has_requests(self) -> bool:
        """Return whether a step is due.

        vLLM takes an empty step behind the last prompt, in which its worker forgets the prompts that have ended. Their answers wait for that
        step, as the thread that sends them needs the same interpreter. Here the worker forgets them in the next step, before it takes new
        prompts. An empty step is taken for prompts that were taken back alone: what waits is counted in steps, and an autoscaler reads it.
        """
        return bool(self.has_unfinished_requests() or (self._taken_back and self.has_finished_requests()))

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """End prompts that were taken back, as vLLM does; those that were computed end elsewhere."""
        self._taken_back = True
        return super().finish_requests(*args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Decide about the next step as vLLM does, with fewer tokens on a CPU, and where long requests meet short ones."""
        self._taken_back = False
        self._long &= self.requests.keys()
        bounded = self._long and steps.is_bounded(time.monotonic(), self._last_short)
        most = steps.most_tokens((tokens for tokens, _ in self._left()), self._most, self._enough)
        self.max_num_scheduled_tokens = self._bound(most) if bounded else most
        step = super().schedule(*args, **kwargs)
        self._after_long = not self._long.isdisjoint(step.num_scheduled_tokens)
        return step

    def _bound(self, most: int) -> int:
        return steps.step_tokens(self._left(), most, self._for_long, after_long=self._after_long)

    def _left(self) -> Iterator[tuple[int, bool]]:
        """Return of each prompt the tokens to compute, and whether it is a long request's."""
        return ((one.num_tokens - one.num_computed_tokens, id_ in self._long) for id_, one in self.requests.items())
