"""ColLFM2 checkpoints as sauerkrautlm-colpali publishes them. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from encoder_plugins.families.vision.checkpoint import VisualFiles
from encoder_plugins.models.collfm2.published import read


class ColLfm2Checkpoint(VisualFiles):
    """The checkpoint format; ``encoder_plugins.prep.checkpoint.Checkpoint`` describes each method.

    The configuration of LFM2-VL is in another repository, the base's, unless the checkpoint has it.
    """

    # vLLM's graphs of this encoder take no views of fewer tokens than config.json says, and fail on pixels that are bytes
    encoder_graphs = False

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the library."""
        read(folder, auxiliary)

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        # torch and transformers: only where a checkpoint is converted
        from encoder_plugins.models.collfm2 import conversion

        conversion.convert(read(folder, auxiliary), folder, target)


CHECKPOINT = ColLfm2Checkpoint()
