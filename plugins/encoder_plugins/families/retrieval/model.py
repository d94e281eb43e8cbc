"""The models of all retrievers of one vector per token in the engine: an encoder with the rows' head."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, join
from encoder_plugins.backbones.encoder_model import EncoderModel
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.config import KEY, PROJECTION, RetrievalConfig
from encoder_plugins.families.retrieval.pooler import RowsPooler

# where the pooler has the modules of the projection
PARAMETERS = "pooler.projection.layers."


class MultiVectorModel(EncoderModel):
    """An encoder with one row per token. vLLM needs one class per architecture: a subclass names its encoder.

    Attributes:
        encoder_class: The encoder.
        encoder_layout: Gives the layout of the encoder's checkpoint from its configuration.
    """

    query_only_tokens = True
    encoder_class: ClassVar[type[nn.Module]]
    encoder_layout: ClassVar[Callable[..., CheckpointLayout]]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        self.settings = RetrievalConfig.from_dict(getattr(vllm_config.model_config.hf_config, KEY))
        super().__init__(
            vllm_config=vllm_config,
            encoder=self.encoder_class(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "encoder")),
            pooler=RowsPooler(self.settings),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        encoder = type(self).encoder_layout(self.config)
        return join(encoder.under("", "encoder."), dense.layout(self.settings.projection, PROJECTION, PARAMETERS))
