"""Which encoders are served, and what is written for the engine. Neither torch nor vLLM is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.post_norm_settings import (
    distilbert_layout,
    mpnet_layout,
    read_distilbert,
    read_mpnet,
)
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.embedding.format import CONFIG, EmbeddingCheckpoint, architecture
from encoder_plugins.prep.checkpoint_json import read_object, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """How an architecture of published checkpoints is served.

    Attributes:
        architecture: The architecture in the artifact.
        prefix: What the names of the encoder's tensors may begin with, beside a head that the library leaves out; empty for
            none.
        read: The engine's own reader of the configuration; None for an encoder of vLLM's.
        layout: The tensors that the engine's own class loads; None for an encoder of vLLM's.
    """

    architecture: str
    prefix: str = ""
    read: Callable[[Any], Any] | None = None
    layout: Callable[[Any], CheckpointLayout] | None = None


def _encoders() -> dict[str, Encoder]:
    """Return the encoders by the architecture that config.json names; each was compared with the library, see the tests."""
    found = {
        name: Encoder(architecture=name)
        for name in (
            "BertModel",
            "Gemma3TextModel",
            "ModernBertModel",
            "Qwen3ForCausalLM",
            "Qwen3Model",
            "RobertaModel",
        )
    }
    found["XLMRobertaModel"] = Encoder(architecture="XLMRobertaModel")
    for name, served, read, layout in (
        ("DistilBertModel", "SentenceDistilBertModel", read_distilbert, distilbert_layout),
        ("MPNetModel", "SentenceMPNetModel", read_mpnet, mpnet_layout),
    ):
        found[name] = found[served] = Encoder(architecture=served, read=read, layout=layout)
    # with a head for masked words, as pretrained checkpoints have it
    for name, encoder, prefix in (
        ("BertForMaskedLM", "BertModel", "bert."),
        ("DistilBertForMaskedLM", "DistilBertModel", "distilbert."),
        ("MPNetForMaskedLM", "MPNetModel", "mpnet."),
        ("ModernBertForMaskedLM", "ModernBertModel", "model."),
        ("RobertaForMaskedLM", "RobertaModel", "roberta."),
        ("XLMRobertaForMaskedLM", "XLMRobertaModel", "roberta."),
    ):
        found[name] = replace(found[encoder], prefix=prefix)
    return found


ENCODERS: Mapping[str, Encoder] = MappingProxyType(_encoders())


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
            from encoder_plugins.models.sentence_transformer.conversion import write_encoder

            write_encoder(folder, target, config, encoder)


CHECKPOINT = SentenceTransformerCheckpoint()
