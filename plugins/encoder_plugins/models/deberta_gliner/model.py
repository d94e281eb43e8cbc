"""GLiNER on a DeBERTa encoder, as a vLLM model."""

from __future__ import annotations

from encoder_plugins.backbones import deberta_v2, deberta_v2_settings
from encoder_plugins.backbones.adapter_tables import DebertaV2Adapters
from encoder_plugins.families.gliner.model import GlinerModel


class DebertaGlinerModel(GlinerModel, DebertaV2Adapters):
    """See ``GlinerModel``; LoRA adapters of the encoder are served."""

    encoder_class = deberta_v2.DebertaV2Encoder
    encoder_layout = staticmethod(deberta_v2_settings.layout)
