"""Nemotron ColEmbed checkpoints as NVIDIA publishes them. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.vision.checkpoint import VisualFiles
from encoder_plugins.models.nemotron_colembed.published import read, read_processing
from encoder_plugins.prep.checkpoint import Listing, Selection


class NemotronCheckpoint(VisualFiles):
    """The checkpoint format; ``encoder_plugins.prep.checkpoint.Checkpoint`` describes each method."""

    runs_code = True
    # without a limit of 0, vLLM would prepare for a video
    modalities: Mapping[str, int] = MappingProxyType({"image": 1, "video": 0})

    def files(self, listing: Listing) -> Selection:
        """Select as every visual checkpoint, and the code, which only the recorder runs, and only with permission."""
        return replace(super().files(listing), code_is_optional=True)

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the published code."""
        if auxiliary:
            raise Unsupported(f"this format needs no auxiliary repository: {', '.join(auxiliary)}")
        read(folder)
        read_processing(folder)

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        del auxiliary
        # torch and transformers: only where a checkpoint is converted
        from encoder_plugins.models.nemotron_colembed import conversion

        conversion.convert(read(folder), read_processing(folder), folder, target)

    def longest(self, folder: Path) -> int:
        """Return the tokens of the longest prompt: a text, as a document with an image has fewer."""
        return read_served(folder).most_tokens


CHECKPOINT = NemotronCheckpoint()
