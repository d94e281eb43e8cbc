"""Token-level GLiNER bi-encoders on DeBERTa, such as those that link mentions to candidates."""

from __future__ import annotations

from encoder_plugins.families.gliner.bi_format import GlinerBiCheckpoint
from encoder_plugins.families.gliner.checkpoint import EncoderSpec

CHECKPOINT = GlinerBiCheckpoint(
    EncoderSpec(
        plugin="deberta_gliner_linker",
        architecture="DebertaGlinerLinkerModel",
        model_type="deberta",
        heads=("token",),
        settings="encoder_plugins.backbones.deberta_v1_settings:Settings",
        layout="encoder_plugins.backbones.deberta_v1_settings:layout",
        relative=True,
        labels=True,
    )
)
