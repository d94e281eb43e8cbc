"""ColBERT on an LFM2 encoder, as a vLLM model."""

from __future__ import annotations

from encoder_plugins.backbones import lfm2, lfm2_settings
from encoder_plugins.families.retrieval.model import MultiVectorModel


class Lfm2ColbertModel(MultiVectorModel):
    """See ``MultiVectorModel``."""

    encoder_class = lfm2.Lfm2Encoder
    encoder_layout = staticmethod(lfm2_settings.layout)
