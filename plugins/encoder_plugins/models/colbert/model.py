"""ColBERT on BERT or XLM-RoBERTa, as a vLLM model."""

from __future__ import annotations

from encoder_plugins.backbones import post_norm, post_norm_settings
from encoder_plugins.families.retrieval.model import MultiVectorModel


class BertColbertModel(MultiVectorModel):
    """See ``MultiVectorModel``."""

    encoder_class = post_norm.BertEncoder
    encoder_layout = staticmethod(post_norm_settings.bert_layout)
