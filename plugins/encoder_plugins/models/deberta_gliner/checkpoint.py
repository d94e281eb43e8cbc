"""Prep of GLiNER checkpoints on DeBERTa: what is refused, and what is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from encoder_plugins.families.gliner import checkpoint
from encoder_plugins.families.gliner.checkpoint import Trunk

TRUNK = Trunk(
    plugin="deberta_gliner",
    architecture="DebertaGlinerModel",
    model_type="deberta-v2",
    # what the library computes and our encoder doesn't; the others are honoured
    fixed={
        "conv_kernel_size": (0, None),
        "hidden_act": ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu"),
    },
    relative=True,
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
