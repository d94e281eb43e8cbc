"""Which checkpoints are served, and what is written for the engine. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from encoder_plugins.errors import NotServable, Unsupported
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.embedding.format import (
    CONFIG,
    EmbeddingCheckpoint,
    architecture,
    dense_folders,
    read,
)
from encoder_plugins.families.embedding.served import served_config
from encoder_plugins.families.retrieval.dense import read_chain
from encoder_plugins.models.sentence_transformer.encoders import ENCODERS, encoder_of
from encoder_plugins.plugin import Accelerator
from encoder_plugins.prep.checkpoint import EngineSettings
from encoder_plugins.prep.checkpoint_json import for_engine, read_object, shown


class SentenceTransformerCheckpoint(EmbeddingCheckpoint):
    """Checkpoints on one of ``ENCODERS``."""

    def read(self, folder: Path) -> EmbeddingConfig:
        """Read and check the configuration of the checkpoint in ``folder``.

        Raises:
            Unsupported: It needs something that is not served; the message names file and field.
            SourceFileNotFound: A file of the format is missing.
        """
        config = read_object(folder, CONFIG)
        encoder = encoder_of(architecture(config))
        if encoder is None:
            supported = ", ".join(sorted(ENCODERS))
            raise Unsupported(
                f"{CONFIG}: architectures is {shown(config.get('architectures'))}; supported: {supported}"
            )
        found = read(folder, residual=encoder.read is not None)
        encoder.layout(config)
        return found

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Give the engine the published files; what the library leaves out (a head) is left out here, too."""
        # torch: only where a checkpoint is converted
        from encoder_plugins.families.embedding.conversion import check_tokenizer, write_model

        super().convert(folder, auxiliary, target)
        config = read_object(folder, CONFIG)
        encoder = encoder_of(architecture(config))
        assert encoder is not None
        # vLLM's classes read the Dense modules from their folders
        dense = dense_folders(folder) if encoder.read is not None else []
        served = for_engine(config)
        if encoder.read is not None:
            settings = encoder.read(config)
            check_tokenizer(folder, getattr(settings, "token_types", 0))
            chain = read_chain(folder, dense, settings.hidden_size)
            served = served_config(config, encoder.architecture, chain)
        write_model(folder, target, layout=encoder.layout(config), prefix=encoder.prefix, dense=dense, served=served)

    def packs_texts(self, folder: Path) -> bool:
        """Return whether the encoder of an artifact is ours; vLLM's class of the same encoder would mix the texts of a prompt."""
        name = architecture(read_object(folder, CONFIG))
        encoder = encoder_of(name)
        return encoder is not None and name == encoder.architecture and encoder.read is not None

    def engine_settings(self, folder: Path, accelerator: Accelerator) -> EngineSettings:
        """Return what an artifact's model folder decides about the engine.

        Raises:
            NotServable: An earlier version prepared it for vLLM's class, or vLLM's attention has no kernel for its head size.
        """
        name = architecture(read_object(folder, CONFIG))
        encoder = encoder_of(name)
        if encoder is not None and name != encoder.architecture:
            raise NotServable(
                f"{CONFIG}: architectures is {name}, as an earlier version wrote it; prepare the artifact again"
            )
        return super().engine_settings(folder, accelerator)


CHECKPOINT = SentenceTransformerCheckpoint()
