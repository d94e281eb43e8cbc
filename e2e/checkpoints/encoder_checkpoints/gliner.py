"""GLiNER checkpoints for tests, benchmarks and the demo, built with the library in its own environment."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from encoder_checkpoints.gliner_builder import FURTHER, PLUGINS
from encoder_checkpoints.gliner_families import FAMILIES
from encoder_checkpoints.original import built, original

__all__ = ["FAMILIES", "FURTHER", "PLUGINS", "build"]

_BUILDER = "encoder_checkpoints.gliner_builder"


def build(folder: Path, plugin: str, shape: str = "tiny", *, auxiliary: Path | None = None, **options: Any) -> Path:
    """Write a checkpoint as it is published; see ``gliner_builder.build`` for the arguments.

    Tiny ones are built once on a machine, and copied.

    Returns:
        ``folder``.
    """
    if shape != "tiny":
        original("gliner").call(f"{_BUILDER}:build", folder, plugin, shape, auxiliary=auxiliary, **options)
        return folder
    cached = built("gliner", f"{_BUILDER}:build_cached", plugin, shape, auxiliary=auxiliary is not None, **options)
    shutil.copytree(cached / "checkpoint", folder, dirs_exist_ok=True)
    if auxiliary is not None:
        shutil.copytree(cached / "auxiliary", auxiliary, dirs_exist_ok=True)
    return folder
