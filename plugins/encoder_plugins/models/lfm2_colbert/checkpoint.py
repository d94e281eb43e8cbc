"""ColBERT checkpoints on LFM2."""

from __future__ import annotations

from encoder_plugins.backbones import lfm2_settings
from encoder_plugins.families.retrieval.checkpoint import MultiVectorCheckpoint
from encoder_plugins.families.retrieval.encoder_spec import EncoderSpec

CHECKPOINT = MultiVectorCheckpoint(
    EncoderSpec(
        architecture="Lfm2ColbertModel",
        published={"Lfm2Model": "model.", "Lfm2ForCausalLM": "model."},
        read=lfm2_settings.Settings.read,
        layout=lfm2_settings.layout,
    )
)
