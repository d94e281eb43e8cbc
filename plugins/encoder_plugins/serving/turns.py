"""Engines of one GPU take turns while they start.

vLLM measures the free memory of a GPU while it loads and profiles a model, which only works while no other process allocates or frees any.
That is less than half of the time that an engine takes to start: the rest is Python, and engines do it side by side. The one with the turn
also finds the graphs that those before have compiled. A lock on a file ends with its process, whatever ends that.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from encoder_plugins.serving.command import START_TURNS


class TurnTakingWorker(Worker):  # type: ignore[misc]
    """vLLM's worker of a GPU, which has the turn from its first use of the GPU until it is ready.

    The variable ``START_TURNS`` names the file that the engines of a server lock; a single engine has none. Of several
    workers of one engine, the first has the turn: vLLM lets them wait for each other before they measure memory.
    """

    _turn: int | None = None

    def init_device(self) -> None:
        """Wait for the turn, and start to use the GPU."""
        if (path := os.environ.get(START_TURNS)) and self.rank == 0 and self._turn is None:
            self._turn = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        super().init_device()

    def compile_or_warm_up_model(self) -> Any:
        """Capture graphs as vLLM does, the last step on the GPU before requests, and release the turn."""
        times = super().compile_or_warm_up_model()
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None
        return times
