"""ColQwen3 checkpoints as sauerkrautlm-colpali publishes them. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision.checkpoint import VisualFiles
from encoder_plugins.models.colqwen3.published import read


class ColQwen3Checkpoint(VisualFiles):
    """The checkpoint format; ``encoder_plugins.prep.checkpoint.Checkpoint`` describes each method."""

    # without a limit of 0, vLLM would prepare for a video
    modalities: Mapping[str, int] = MappingProxyType({"image": 1, "video": 0})

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the library."""
        if auxiliary:
            raise Unsupported(f"this format needs no auxiliary repository: {', '.join(auxiliary)}")
        read(folder)

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        del auxiliary
        # torch and transformers: only where a checkpoint is converted
        from encoder_plugins.models.colqwen3 import conversion

        conversion.convert(read(folder), folder, target)


CHECKPOINT = ColQwen3Checkpoint()
