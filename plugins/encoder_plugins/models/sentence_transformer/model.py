"""Embedding models of encoders that vLLM does not have, as vLLM models."""

from __future__ import annotations

from encoder_plugins.backbones import post_norm_settings
from encoder_plugins.backbones.post_norm import DistilBertEncoder, MPNetEncoder, PostNormEmbeddingModel


class SentenceDistilBertModel(PostNormEmbeddingModel):
    """DistilBERT."""

    encoder_class = DistilBertEncoder
    encoder_layout = staticmethod(post_norm_settings.distilbert_layout)


class SentenceMPNetModel(PostNormEmbeddingModel):
    """MPNet."""

    encoder_class = MPNetEncoder
    encoder_layout = staticmethod(post_norm_settings.mpnet_layout)
