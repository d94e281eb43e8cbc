"""Engines of vLLM in the process of the tests, one at a time.

vLLM's layers talk through groups that belong to the process. An engine that is collected ends them, and with them those that a later
engine made: an engine left to the collector would stop another test's, in another file. So the one before is ended first, by us.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_PLUGINS": "encoder",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_engines: list[Any] = []


@contextmanager
def environment() -> Iterator[None]:
    """Set what an engine in this process needs of the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


def start(model: Path, **options: Any) -> Any:
    """Start an engine for a model folder; the one before ends."""
    from vllm import LLM

    end()
    try:
        engine = LLM(str(model), runner="pooling", enforce_eager=True, enable_prefix_caching=False, **options)
    except BaseException as error:
        # or what it had started would live as long as the error is kept
        traceback.clear_frames(error.__traceback__)
        gc.collect()
        raise
    _engines.append(engine)
    return engine


def runs(engine: Any) -> bool:
    """Return whether an engine is the one that was started last."""
    return any(one is engine for one in _engines)


def end() -> None:
    """End the engine that was started last."""
    while _engines:
        _engines.pop().llm_engine.engine_core.shutdown()
    gc.collect()
