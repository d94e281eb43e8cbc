"""GLiNER bi-encoders: token-level ones on DeBERTa, such as those that link mentions, and those of spans on ModernBERT and DeBERTa-v3."""

from __future__ import annotations

from encoder_plugins.families.gliner.bi_format import GlinerBiCheckpoint
from encoder_plugins.families.gliner.checkpoint import BackboneSpec, EncoderSpec

_DEBERTA = BackboneSpec(
    model_type="deberta",
    settings="encoder_plugins.backbones.deberta_v1_settings:Settings",
    layout="encoder_plugins.backbones.deberta_v1_settings:layout",
)
_BERT = BackboneSpec(
    model_type="bert",
    settings="encoder_plugins.backbones.post_norm_settings:BertSettings",
    layout="encoder_plugins.backbones.post_norm_settings:bert_layout",
)

CHECKPOINT = GlinerBiCheckpoint(
    EncoderSpec(
        plugin="deberta_gliner_linker",
        architecture="DebertaGlinerLinkerModel",
        model_type=_DEBERTA.model_type,
        heads=("token",),
        settings=_DEBERTA.settings,
        layout=_DEBERTA.layout,
        relative=True,
        labels=_DEBERTA,
    ),
    EncoderSpec(
        plugin="deberta_gliner_linker",
        architecture="ModernBertGlinerBiModel",
        model_type="modernbert",
        settings="encoder_plugins.backbones.modernbert_settings:Settings",
        layout="encoder_plugins.backbones.modernbert_settings:layout",
        fixed={"hidden_activation": ("gelu",)},
        relative=False,
        vllm_attention=True,
        labels=_BERT,
    ),
    EncoderSpec(
        plugin="deberta_gliner_linker",
        architecture="DebertaV2GlinerBiModel",
        model_type="deberta-v2",
        settings="encoder_plugins.backbones.deberta_v2_settings:Settings",
        layout="encoder_plugins.backbones.deberta_v2_settings:layout",
        fixed={"conv_kernel_size": (0, None), "hidden_act": ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")},
        relative=True,
        labels=_BERT,
    ),
)
