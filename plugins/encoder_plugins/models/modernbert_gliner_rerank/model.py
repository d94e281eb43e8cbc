"""GLiNER's token-level models on a ModernBERT encoder, as a vLLM model."""

from __future__ import annotations

from encoder_plugins.backbones import modernbert, modernbert_settings
from encoder_plugins.families.gliner.model import GlinerModel


class ModernBertGlinerRerankModel(GlinerModel, modernbert.ModernBertAdapters):
    """See ``GlinerModel``; LoRA adapters of the encoder are served."""

    encoder_class = modernbert.ModernBertEncoder
    encoder_layout = staticmethod(modernbert_settings.layout)
