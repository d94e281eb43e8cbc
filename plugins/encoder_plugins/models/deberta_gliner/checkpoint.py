"""GLiNER checkpoints on DeBERTa v2 and v3."""

from __future__ import annotations

from encoder_plugins.families.gliner.checkpoint import EncoderSpec
from encoder_plugins.families.gliner.format import GlinerCheckpoint

CHECKPOINT = GlinerCheckpoint(
    EncoderSpec(
        plugin="deberta_gliner",
        architecture="DebertaGlinerModel",
        model_type="deberta-v2",
        heads=("span", "token"),
        settings="encoder_plugins.backbones.deberta_v2_settings:Settings",
        layout="encoder_plugins.backbones.deberta_v2_settings:layout",
        # what the library computes and our encoder does not; other values are honoured
        fixed={
            "conv_kernel_size": (0, None),
            "hidden_act": ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu"),
        },
        relative=True,
    )
)
