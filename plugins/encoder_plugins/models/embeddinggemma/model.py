"""EmbeddingGemma as a vLLM model."""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.encoder_model import EncoderModel
from encoder_plugins.backbones.gemma3 import Gemma3Encoder
from encoder_plugins.families.embedding.pooling import MeanPooler
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.dense_layers import DenseChain
from encoder_plugins.models.embeddinggemma.layout import KEY, served_layout


class SentenceGemma3Model(EncoderModel):
    """Gemma 3's encoder, the mean of its rows, and the checkpoint's Dense modules."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        self.chain = dense.from_config(getattr(vllm_config.model_config.hf_config, KEY))
        super().__init__(
            vllm_config=vllm_config,
            encoder=Gemma3Encoder(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "encoder")),
            pooler=MeanPooler(DenseChain(self.chain)),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        return served_layout(self.config, self.chain)
