"""ColBERT checkpoints on BERT, CamemBERT and XLM-RoBERTa."""

from __future__ import annotations

from encoder_plugins.backbones import post_norm_settings
from encoder_plugins.families.retrieval.checkpoint import MultiVectorCheckpoint
from encoder_plugins.families.retrieval.encoder_spec import EncoderSpec

CHECKPOINT = MultiVectorCheckpoint(
    EncoderSpec(
        architecture="BertColbertModel",
        published={
            "BertModel": "bert.",
            "BertForMaskedLM": "bert.",
            "CamembertModel": "roberta.",
            "CamembertForMaskedLM": "roberta.",
            "XLMRobertaModel": "roberta.",
            "XLMRobertaForMaskedLM": "roberta.",
        },
        read=post_norm_settings.read_bert,
        layout=post_norm_settings.bert_layout,
        stanford={"bert": "bert.", "camembert": "roberta.", "xlm-roberta": "roberta."},
    )
)
