"""Token-level GLiNER checkpoints on ModernBERT, such as those that rerank candidates."""

from __future__ import annotations

from encoder_plugins.families.gliner.checkpoint import EncoderSpec
from encoder_plugins.families.gliner.format import GlinerCheckpoint

CHECKPOINT = GlinerCheckpoint(
    EncoderSpec(
        plugin="modernbert_gliner_rerank",
        architecture="ModernBertGlinerRerankModel",
        model_type="modernbert",
        heads=("token",),
        settings="encoder_plugins.backbones.modernbert_settings:Settings",
        layout="encoder_plugins.backbones.modernbert_settings:layout",
        fixed={"hidden_activation": ("gelu",)},
        relative=False,
        vllm_attention=True,
    )
)
