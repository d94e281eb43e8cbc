"""Encoders of one vector per text, as vLLM models."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.encoder_model import EncoderModel
from encoder_plugins.families.embedding.pooling import SingleVectorPooler
from encoder_plugins.families.embedding.served import DENSE_KEY, POOLING_KEY, served_layout
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.dense_layers import DenseChain

# by vLLM's names
POOLINGS = {"MEAN": "mean", "CLS": "cls", "LAST": "lasttoken"}


class SingleVectorModel(EncoderModel):
    """An encoder, a vector of each text's rows, and the checkpoint's Dense modules. A subclass names the encoder.

    Attributes:
        encoder_class: The encoder.
        encoder_layout: Gives the layout of the encoder's checkpoint from its configuration.
    """

    encoder_class: ClassVar[type[nn.Module]]
    encoder_layout: ClassVar[Callable[..., CheckpointLayout]]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        self.chain = dense.from_config(getattr(config, DENSE_KEY))
        super().__init__(
            vllm_config=vllm_config,
            encoder=self.encoder_class(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "encoder")),
            # as vLLM reads the checkpoint's modules, or the user's own `--pooler-config`, which parity then refuses
            pooler=SingleVectorPooler(
                POOLINGS.get(
                    str(vllm_config.model_config.pooler_config.seq_pooling_type), getattr(config, POOLING_KEY)
                ),
                DenseChain(self.chain),
            ),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        return served_layout(type(self).encoder_layout(self.config), self.chain)
