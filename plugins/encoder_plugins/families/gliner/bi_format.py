"""The checkpoint format of GLiNER's bi-encoders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from encoder_plugins.families.gliner import bi_checkpoint, checkpoint
from encoder_plugins.families.gliner.config import LABELS_TOKENIZER
from encoder_plugins.families.gliner.format import GlinerCheckpoint
from encoder_plugins.parameters import Value


class GlinerBiCheckpoint(GlinerCheckpoint):
    """GLiNER's bi-encoders; ``encoder_plugins.prep.checkpoint.Checkpoint`` says what each part is for."""

    folders: ClassVar[tuple[str, ...]] = ("", LABELS_TOKENIZER)

    def configured(self, parameters: Mapping[str, Value]) -> GlinerBiCheckpoint:
        """Return the same format for checkpoints whose configuration the user's parameters change."""
        return GlinerBiCheckpoint(self.spec, parameters)

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the library."""
        from encoder_plugins.families.gliner import bi_conversion, conversion

        settings = bi_checkpoint.read(folder, self._chosen.changes)
        encoder = checkpoint.encoder_config(settings.text, auxiliary, self.spec)
        checkpoint.tokenizer_folder(settings.text, folder, auxiliary)
        conversion.read_encoder(self.spec, settings.text, encoder)
        bi_conversion.read_label_encoder(self.spec, bi_checkpoint.labels_config(settings, auxiliary, self.spec))
        bi_checkpoint.labels_tokenizer_folder(settings, folder, auxiliary)

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        from encoder_plugins.families.gliner import bi_conversion

        bi_conversion.convert(self.spec, folder, auxiliary, target, self._chosen.changes)
