"""Tiny tokenizers of stanza for tests, trained by stanza in gliner's environment."""

from __future__ import annotations

import shutil
from pathlib import Path

from encoder_checkpoints.original import built

LANGUAGES = ("en", "fr", "ja")


def build(folder: Path) -> dict[str, Path]:
    """Write the repositories of ``LANGUAGES`` below ``folder`` as they are published; return where each is.

    They are trained once on a machine, and copied.
    """
    shutil.copytree(built("gliner", "encoder_checkpoints.stanza_builder:build"), folder, dirs_exist_ok=True)
    return {language: folder / f"stanza-{language}" for language in LANGUAGES}
