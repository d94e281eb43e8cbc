"""GLiNER checkpoints on mT5's encoder."""

from __future__ import annotations

from encoder_plugins.families.gliner.checkpoint import EncoderSpec
from encoder_plugins.families.gliner.format import GlinerCheckpoint

CHECKPOINT = GlinerCheckpoint(
    EncoderSpec(
        plugin="mt5_gliner",
        architecture="Mt5GlinerModel",
        model_type="mt5",
        settings="encoder_plugins.backbones.mt5_settings:Settings",
        layout="encoder_plugins.backbones.mt5_settings:layout",
        fixed={"feed_forward_proj": ("gated-gelu",), "is_decoder": (False,)},
        # vLLM would take it for a model with a decoder
        changes={"is_encoder_decoder": False},
        relative=True,
    )
)
