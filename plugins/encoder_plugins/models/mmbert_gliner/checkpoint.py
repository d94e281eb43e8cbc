"""Prep of GLiNER checkpoints on ModernBERT: what is refused, and what is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from encoder_plugins.families.gliner import checkpoint
from encoder_plugins.families.gliner.checkpoint import Trunk

TRUNK = Trunk(
    plugin="mmbert_gliner",
    architecture="MmbertGlinerModel",
    model_type="modernbert",
    fixed={"hidden_activation": ("gelu",)},
    relative=False,
)


def check(folder: Path, auxiliary: Mapping[str, Path]) -> None:
    """Refuse, before its weights are fetched, a checkpoint that would be served differently from the library."""
    settings = checkpoint.read(folder)
    checkpoint.encoder_config(settings, auxiliary, TRUNK)
    checkpoint.tokenizer_folder(settings, folder, auxiliary)


def convert(folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
    """Write the artifact's model folder from the checkpoint in ``folder``."""
    from encoder_plugins.families.gliner.conversion import convert as write

    write(TRUNK, folder, auxiliary, target)
