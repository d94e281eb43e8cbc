"""Embedding models on encoders of ours, as vLLM models."""

from __future__ import annotations

from encoder_plugins.backbones import modernbert_settings, post_norm_settings
from encoder_plugins.backbones.modernbert import ModernBertEncoder
from encoder_plugins.backbones.post_norm import BertEncoder, DistilBertEncoder, MPNetEncoder
from encoder_plugins.families.embedding.model import SingleVectorModel


class SentenceBertModel(SingleVectorModel):
    """BERT, RoBERTa and XLM-RoBERTa."""

    encoder_class = BertEncoder
    encoder_layout = staticmethod(post_norm_settings.bert_layout)


class SentenceDistilBertModel(SingleVectorModel):
    """DistilBERT."""

    encoder_class = DistilBertEncoder
    encoder_layout = staticmethod(post_norm_settings.distilbert_layout)


class SentenceMPNetModel(SingleVectorModel):
    """MPNet."""

    encoder_class = MPNetEncoder
    encoder_layout = staticmethod(post_norm_settings.mpnet_layout)


class SentenceModernBertModel(SingleVectorModel):
    """ModernBERT."""

    encoder_class = ModernBertEncoder
    encoder_layout = staticmethod(modernbert_settings.layout)
