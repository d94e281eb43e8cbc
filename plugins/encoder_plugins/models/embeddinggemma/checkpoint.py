"""Checkpoints in sentence-transformers format on Gemma 3's bidirectional encoder. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from encoder_plugins.backbones.gemma3_settings import Settings, check_bidirectional
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.embedding.format import (
    CONFIG,
    EmbeddingCheckpoint,
    architecture,
    dense_folders,
    read,
    read_modules,
)
from encoder_plugins.families.embedding.served import served_config
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.dense import DenseSpec
from encoder_plugins.models.embeddinggemma.layout import encoder_layout
from encoder_plugins.prep.checkpoint_json import read_object, shown

PUBLISHED, SERVED = "Gemma3TextModel", "SentenceGemma3Model"

# the sizes that EmbeddingGemma was trained for (Matryoshka representation learning)
SIZES = (768, 512, 256, 128)


def sizes(dimensions: int) -> tuple[int, ...]:
    """Return what vectors of ``dimensions`` numbers can be cut to: all of them, and the smaller ones of ``SIZES``."""
    return (dimensions, *(size for size in SIZES if size < dimensions))


class EmbeddingGemmaCheckpoint(EmbeddingCheckpoint):
    """Checkpoints as google/embeddinggemma-300m is published."""

    def read(self, folder: Path) -> EmbeddingConfig:
        """Read and check the configuration of the checkpoint in ``folder``, published or prepared.

        Raises:
            Unsupported: It needs something that is not served; the message names file and field.
            SourceFileNotFound: A file of the format is missing.
        """
        config = read_object(folder, CONFIG)
        if architecture(config) not in (PUBLISHED, SERVED):
            raise Unsupported(
                f"{CONFIG}: architectures is {shown(config.get('architectures'))}; supported: {PUBLISHED}"
            )
        check_bidirectional(Settings.read(config))
        found = read(folder, residual=True, own_prompts=True)
        if found.pooling != "mean":
            raise Unsupported(
                f"{read_modules(folder)[1][1]}/config.json: pooling_mode is {found.pooling}; supported: mean"
            )
        read_chain(folder, config)
        return found

    def convert(self, folder: Path, auxiliary: Mapping[str, Path], target: Path) -> None:
        """Give the engine the published files, and beside them the Dense modules' tensors in a file where it finds them."""
        # torch: only where a checkpoint is converted
        from encoder_plugins.families.embedding.conversion import write_model

        super().convert(folder, auxiliary, target)
        config = read_object(folder, CONFIG)
        write_model(
            folder,
            target,
            layout=encoder_layout(config),
            prefix="",
            dense=dense_folders(folder),
            served=served_config(config, SERVED, read_chain(folder, config)),
        )

    def packs_texts(self, folder: Path) -> bool:
        """Return true: the encoder is ours."""
        del folder
        return True


CHECKPOINT = EmbeddingGemmaCheckpoint()


def read_chain(folder: Path, config: Mapping[str, Any]) -> Sequence[DenseSpec]:
    """Return the Dense modules of a checkpoint, the first as wide as the encoder.

    Raises:
        Unsupported: One is not supported, or does not fit the module before it.
    """
    return dense.read_chain(folder, dense_folders(folder), Settings.read(config).hidden_size)
