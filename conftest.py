"""For every suite: the garbage collector is paused while tests are collected, since imports take most of that time and what they create stays."""

from __future__ import annotations

import gc

from encoder_plugins import python_gc

gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    python_gc.raise_threshold()
