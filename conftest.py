"""For every suite: imports take most of a collection's time, and nearly all that they make stays to the end."""

from __future__ import annotations

import gc

from encoder_plugins import collector

gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    collector.run_seldom()
