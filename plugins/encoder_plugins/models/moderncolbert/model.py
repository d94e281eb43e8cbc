"""ColBERT on a ModernBERT encoder, as a vLLM model."""

from __future__ import annotations

from encoder_plugins.backbones import modernbert, modernbert_settings
from encoder_plugins.families.retrieval.model import MultiVectorModel


class ModernColbertModel(MultiVectorModel):
    """See ``MultiVectorModel``."""

    encoder_class = modernbert.ModernBertEncoder
    encoder_layout = staticmethod(modernbert_settings.layout)
