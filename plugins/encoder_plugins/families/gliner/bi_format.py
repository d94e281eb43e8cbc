"""The checkpoint format of GLiNER's bi-encoders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from encoder_plugins.families.gliner import bi_checkpoint, checkpoint
from encoder_plugins.families.gliner.checkpoint import EncoderSpec
from encoder_plugins.families.gliner.config import LABELS_TOKENIZER
from encoder_plugins.families.gliner.format import GlinerCheckpoint
from encoder_plugins.families.gliner.prompt import LabelProblem
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Accelerator
from encoder_plugins.prep.checkpoint import EngineSettings
from encoder_plugins.prep.checkpoint_json import read_object


class GlinerBiCheckpoint(GlinerCheckpoint):
    """GLiNER's bi-encoders; ``encoder_plugins.prep.checkpoint.Checkpoint`` says what each part is for."""

    folders: ClassVar[tuple[str, ...]] = ("", LABELS_TOKENIZER)

    def __init__(self, *specs: EncoderSpec, parameters: Mapping[str, Value] = MappingProxyType({})) -> None:
        super().__init__(specs[0], parameters)
        self._specs = specs

    def configured(self, parameters: Mapping[str, Value]) -> GlinerBiCheckpoint:
        """Return the same format for checkpoints whose configuration the user's parameters change."""
        return GlinerBiCheckpoint(*self._specs, parameters=parameters)

    def check(self, folder: Path, auxiliary: Mapping[str, Path]) -> None:
        """Refuse, before its weights are downloaded, a checkpoint that would be served differently from the library."""
        from encoder_plugins.families.gliner import bi_conversion, conversion

        settings = bi_checkpoint.read(folder, self._chosen.changes)
        spec = bi_checkpoint.spec_of(settings, auxiliary, self._specs)
        encoder = checkpoint.encoder_config(settings.text, auxiliary, spec)
        checkpoint.tokenizer_folder(settings.text, folder, auxiliary)
        conversion.read_encoder(spec, settings.text, encoder)
        bi_conversion.read_label_encoder(spec, bi_checkpoint.labels_config(settings, auxiliary, spec))
        bi_checkpoint.labels_tokenizer_folder(settings, folder, auxiliary)

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Write the artifact's model folder from the checkpoint in ``folder``."""
        from encoder_plugins.families.gliner import bi_conversion

        settings = bi_checkpoint.read(folder, self._chosen.changes)
        spec = bi_checkpoint.spec_of(settings, auxiliary, self._specs)
        bi_conversion.convert(spec, settings, folder, auxiliary, target)

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what an artifact's model folder decides about the engine; see ``GlinerCheckpoint``."""
        named = read_object(folder, checkpoint.ENCODER_CONFIG).get("architectures")
        for spec in self._specs:
            if named == [spec.architecture]:
                return GlinerCheckpoint(spec).engine_settings(folder, accelerator)
        return super().engine_settings(folder, accelerator)

    def refused_label(self, model: Path, labels: Iterable[str]) -> tuple[int, str] | None:
        """Return the number of the first label that the server could not take, and why; None where it can take all of them."""
        # torch: only when the weights are converted
        from encoder_plugins.families.gliner.label_sets import runs_of
        from encoder_plugins.families.gliner.linking import bi_builder

        try:
            for _ in runs_of(labels, bi_builder(model)):
                pass
        except LabelProblem as problem:
            return problem.position, str(problem)
        return None
