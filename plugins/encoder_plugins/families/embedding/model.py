"""Encoders of one vector per text, as vLLM models."""

from __future__ import annotations

from vllm.config import VllmConfig

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.encoder_model import NamedEncoderModel
from encoder_plugins.families.embedding.pooling import SingleVectorPooler
from encoder_plugins.families.embedding.served import DENSE_KEY, served_layout
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.dense_layers import DenseChain


class SingleVectorModel(NamedEncoderModel):
    """An encoder, a vector of each text's rows, and the checkpoint's Dense modules."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        self.chain = dense.from_config(getattr(vllm_config.model_config.hf_config, DENSE_KEY))
        super().__init__(
            vllm_config=vllm_config,
            prefix=prefix,
            pooler=SingleVectorPooler(vllm_config.model_config.pooler_config.seq_pooling_type, DenseChain(self.chain)),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        return served_layout(type(self).encoder_layout(self.config), self.chain)
