"""ColBERT checkpoints on BERT and XLM-RoBERTa."""

from __future__ import annotations

from encoder_plugins.backbones import post_norm_settings
from encoder_plugins.families.retrieval.checkpoint import MultiVectorCheckpoint
from encoder_plugins.families.retrieval.encoder_spec import EncoderSpec

CHECKPOINT = MultiVectorCheckpoint(
    EncoderSpec(
        architecture="BertColbertModel",
        published={
            "BertModel": "",
            "BertForMaskedLM": "bert.",
            "XLMRobertaModel": "",
            "XLMRobertaForMaskedLM": "roberta.",
        },
        read=post_norm_settings.read_bert,
        layout=post_norm_settings.bert_layout,
        stanford={"bert": "bert.", "xlm-roberta": "roberta."},
    )
)
