"""Prep of GLiNER checkpoints on mT5: what is refused, and what is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.gliner import checkpoint
from encoder_plugins.families.gliner.checkpoint import Trunk

TRUNK = Trunk(
    plugin="mt5_gliner",
    architecture="Mt5GlinerModel",
    model_type="mt5",
    fixed={"feed_forward_proj": ("gated-gelu",), "is_decoder": (False,)},
    # vLLM would take it for a model with a decoder
    changes={"is_encoder_decoder": False},
    relative=True,
)


def check(folder: Path, auxiliary: Mapping[str, Path]) -> None:
    """Refuse, before its weights are fetched, a checkpoint that would be served differently from the library."""
    if checkpoint.read_object(folder, checkpoint.CONFIG).get("words_splitter_type") == "stanza":
        raise Unsupported(
            f"{checkpoint.CONFIG}: words_splitter_type is 'stanza', with which gliner guesses each text's language and fetches a "
            "model for it at that moment, so that answers depend on what could be fetched. To serve these weights on words "
            'as gliner finds them by default, say "whitespace" in a copy of the checkpoint, and give that as the source'
        )
    settings = checkpoint.read(folder)
    checkpoint.encoder_config(settings, auxiliary, TRUNK)
    checkpoint.tokenizer_folder(settings, folder, auxiliary)


def convert(folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
    """Write the artifact's model folder from the checkpoint in ``folder``."""
    from encoder_plugins.families.gliner.conversion import convert as write

    write(TRUNK, folder, auxiliary, target)
