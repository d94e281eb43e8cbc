"""GLiNER2 checkpoints for tests, benchmarks and the demo, built with the library in its own environment."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from encoder_checkpoints.gliner2_builder import COUNTING_LAYERS
from encoder_checkpoints.original import built, original

__all__ = ["COUNTING_LAYERS", "build"]

_BUILDER = "encoder_checkpoints.gliner2_builder"


def build(folder: Path, shape: str = "tiny", **options: Any) -> Path:
    """Write a checkpoint as it is published; see ``gliner2_builder.build`` for the arguments.

    Tiny ones are built once on a machine, and copied.

    Returns:
        ``folder``.
    """
    if shape != "tiny":
        original("gliner2").call(f"{_BUILDER}:build", folder, shape, **options)
        return folder
    cached = built("gliner2", f"{_BUILDER}:build", shape, **options)
    shutil.copytree(cached, folder, dirs_exist_ok=True)
    return folder
