"""ColBERT checkpoints on ModernBERT."""

from __future__ import annotations

from encoder_plugins.backbones import modernbert_settings
from encoder_plugins.families.retrieval.checkpoint import MultiVectorCheckpoint
from encoder_plugins.families.retrieval.encoder_spec import EncoderSpec

CHECKPOINT = MultiVectorCheckpoint(
    EncoderSpec(
        architecture="ModernColbertModel",
        published={"ModernBertModel": "model.", "ModernBertForMaskedLM": "model."},
        read=modernbert_settings.Settings.read,
        layout=modernbert_settings.layout,
        stanford={"modernbert": "model."},
    )
)
