"""GLiNER checkpoints on ModernBERT, such as mmBERT."""

from __future__ import annotations

from encoder_plugins.families.gliner.checkpoint import EncoderSpec
from encoder_plugins.families.gliner.format import GlinerCheckpoint

CHECKPOINT = GlinerCheckpoint(
    EncoderSpec(
        plugin="mmbert_gliner",
        architecture="MmbertGlinerModel",
        model_type="modernbert",
        settings="encoder_plugins.backbones.modernbert_settings:Settings",
        layout="encoder_plugins.backbones.modernbert_settings:layout",
        fixed={"hidden_activation": ("gelu",)},
        relative=False,
    )
)
