"""GLiNER's bi-encoders as vLLM models: one for each encoder of texts."""

from __future__ import annotations

from encoder_plugins.backbones import (
    deberta_v1,
    deberta_v1_settings,
    deberta_v2,
    deberta_v2_settings,
    modernbert,
    modernbert_settings,
    post_norm,
    post_norm_settings,
)
from encoder_plugins.families.gliner.bi_model import GlinerBiModel


class DebertaGlinerLinkerModel(GlinerBiModel):
    """DeBERTa for texts and for labels; see ``GlinerBiModel``."""

    encoder_class = deberta_v1.DebertaV1Encoder
    encoder_layout = staticmethod(deberta_v1_settings.layout)
    label_encoder_class = deberta_v1.DebertaV1Encoder
    label_settings_class = deberta_v1_settings.Settings
    label_layout = staticmethod(deberta_v1_settings.layout)


class _WithBert(GlinerBiModel):
    label_encoder_class = post_norm.BertEncoder
    label_settings_class = post_norm_settings.BertSettings
    label_layout = staticmethod(post_norm_settings.bert_layout)


class ModernBertGlinerBiModel(_WithBert):
    """ModernBERT for texts, and BERT for labels; see ``GlinerBiModel``."""

    encoder_class = modernbert.ModernBertEncoder
    encoder_layout = staticmethod(modernbert_settings.layout)


class DebertaV2GlinerBiModel(_WithBert):
    """DeBERTa-v2 or v3 for texts, and BERT for labels; see ``GlinerBiModel``."""

    encoder_class = deberta_v2.DebertaV2Encoder
    encoder_layout = staticmethod(deberta_v2_settings.layout)
