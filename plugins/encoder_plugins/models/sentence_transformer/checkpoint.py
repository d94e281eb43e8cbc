"""Which checkpoints are served, and what is written for the engine. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.embedding.format import CONFIG, EmbeddingCheckpoint, architecture
from encoder_plugins.models.sentence_transformer.encoders import ENCODERS
from encoder_plugins.prep.checkpoint_json import read_object, shown


class SentenceTransformerCheckpoint(EmbeddingCheckpoint):
    """Checkpoints on one of ``ENCODERS``."""

    # transformers 5 saves no position_embedding_type any more, and vLLM 0.32 cannot read a RoBERTa without it;
    # `read` refuses checkpoints that have another one
    hf_overrides = MappingProxyType({"position_embedding_type": "absolute"})

    def read(self, folder: Path) -> EmbeddingConfig:
        """Read and check the configuration of the checkpoint in ``folder``.

        Raises:
            Unsupported: It needs something that vLLM does not do; the message names file and field.
            SourceFileNotFound: A file of the format is missing.
        """
        config = read_object(folder, CONFIG)
        encoder = ENCODERS.get(architecture(config))
        if encoder is None:
            supported = ", ".join(sorted(ENCODERS))
            raise Unsupported(
                f"{CONFIG}: architectures is {shown(config.get('architectures'))}; supported: {supported}"
            )
        if encoder.read is not None:
            encoder.read(config)
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise Unsupported(
                f"{CONFIG}: position_embedding_type is {shown(config['position_embedding_type'])}; supported: absolute"
            )
        return super().read(folder)

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Give the engine the published files; what the library leaves out (a head for masked words) is left out here, too."""
        super().convert(folder, auxiliary, target)
        config = read_object(folder, CONFIG)
        encoder = ENCODERS[architecture(config)]
        if encoder.prefix or encoder.layout:
            # torch: only where a checkpoint is converted
            from encoder_plugins.models.sentence_transformer.conversion import write_encoder

            write_encoder(folder, target, config, encoder)


CHECKPOINT = SentenceTransformerCheckpoint()
