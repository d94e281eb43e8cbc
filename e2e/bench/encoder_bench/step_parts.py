"""Where the host's time of an engine's step goes, by part: methods of a running engine are timed, each without what it calls of others.

The methods are those of vLLM's second model runner, its scheduler and its engine; one that an engine does not have is left out, and its
time counts for the part around it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

ADD, SCHEDULE, STATES, INPUTS, FORWARD, POOLER, WAIT, OUTPUT, OTHER = PARTS = (
    "add requests",
    "schedule",
    "states",
    "inputs",
    "forward launch",
    "pooler",
    "wait",
    "output",
    "other",
)
"""The parts of a step, in its order; ``other`` is what no method of the others took."""

_RUNNER = {
    **dict.fromkeys(("add_requests", "update_requests", "finish_requests", "free_states"), STATES),
    **dict.fromkeys(("gather_batch_req_state", "prepare_inputs", "prepare_attn"), INPUTS),
    "pool": OUTPUT,
}
_MODEL_STATE = {"prepare_inputs": INPUTS, "prepare_attn": INPUTS, "preprocess_state": INPUTS}


class Clock:
    """Adds up the time of each part, each without the parts that it calls.

    Args:
        now: Gives the seconds that have passed since some moment.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Count the time of the block for a part."""
        self._turn()
        self._open.append(part)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = self._now()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return a function whose time counts for a part."""

        def measured(*arguments: Any, **more: Any) -> Any:
            with self.within(part):
                return call(*arguments, **more)

        return measured

    def take(self) -> Mapping[str, float]:
        """Return what was added up, and begin anew."""
        found, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return found


@contextlib.contextmanager
def watched(engine: Any, worker: Any, model: Any, clock: Clock) -> Iterator[None]:
    """Time the parts of a running engine in the block.

    Args:
        engine: vLLM's engine in this process.
        worker: Its worker.
        model: The model.
        clock: Gets the time of each part.
    """
    import torch

    runner = worker.model_runner
    # inside the engine's client in this process is the engine's core
    core = getattr(engine.engine_core, "engine_core", None)
    owners: list[tuple[Any, Mapping[str, str]]] = [
        (engine, {"add_request": ADD, "step": OTHER}),
        (getattr(engine, "output_processor", None), {"process_outputs": OUTPUT}),
        (getattr(core, "scheduler", None), {"schedule": SCHEDULE, "update_from_output": OUTPUT}),
        (runner, _RUNNER),
        (getattr(runner, "model_state", None), _MODEL_STATE),
        (model, {"forward": FORWARD}),
        (model.pooler, {"forward": POOLER}),
    ]
    with contextlib.ExitStack() as stack:
        for owner, parts in owners:
            for name, part in parts.items():
                if owner is not None and callable(method := getattr(owner, name, None)):
                    stack.enter_context(_replaced(owner, name, clock.timed(method, part)))
        # the classes of streams and events are vLLM's way, and ours, to wait for the device
        for kind in (torch.cuda.Stream, torch.cuda.Event):
            stack.enter_context(_waits(clock, kind))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, call: Callable[..., Any]) -> Iterator[None]:
    # an attribute of the object hides the method of its class, and is taken away again
    object.__setattr__(owner, name, call)
    try:
        yield
    finally:
        object.__delattr__(owner, name)


@contextlib.contextmanager
def _waits(clock: Clock, kind: Any) -> Iterator[None]:
    # vLLM replaces the classes on a CPU, by ones that nobody waits for
    plain = getattr(kind, "synchronize", None)
    if plain is None:
        yield
        return

    def synchronize(own: Any) -> Any:
        with clock.within(WAIT):
            return plain(own)

    kind.synchronize = synchronize
    try:
        yield
    finally:
        kind.synchronize = plain


def table(title: str, rows: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown: microseconds by part, of a step and of a text.

    Args:
        title: The name of the first column.
        rows: By the texts of a step, seconds by part.
    """
    yield f"| {title} | µs of | total | {' | '.join(PARTS)} |"
    yield f"|{'---|' * (len(PARTS) + 3)}"
    for texts, seconds in rows.items():
        yield from lines(texts, seconds)


def lines(texts: int, seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield the two lines of one number of texts."""
    for what, share in (("a step", 1), ("a text", texts)):
        numbers = [sum(seconds.values()), *(seconds[part] for part in PARTS)]
        shown = " | ".join(f"{1e6 * number / share:.0f}" for number in numbers)
        yield f"| {texts} | {what} | {shown} |"
