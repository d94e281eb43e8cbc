"""GLiNER's token-level bi-encoders on two DeBERTa encoders, as a vLLM model."""

from __future__ import annotations

from encoder_plugins.backbones import deberta_v1, deberta_v1_settings
from encoder_plugins.families.gliner.bi_model import GlinerBiModel


class DebertaGlinerLinkerModel(GlinerBiModel):
    """See ``GlinerBiModel``."""

    encoder_class = deberta_v1.DebertaV1Encoder
    settings_class = deberta_v1_settings.Settings
    encoder_layout = staticmethod(deberta_v1_settings.layout)
