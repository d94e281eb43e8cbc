"""EmbeddingGemma as a vLLM model."""

from __future__ import annotations

from encoder_plugins.backbones.gemma3 import Gemma3Encoder
from encoder_plugins.families.embedding.model import SingleVectorModel
from encoder_plugins.models.embeddinggemma.layout import encoder_layout


class SentenceGemma3Model(SingleVectorModel):
    """Gemma 3's encoder, the mean of its rows, and the checkpoint's Dense modules."""

    encoder_class = Gemma3Encoder
    encoder_layout = staticmethod(encoder_layout)
