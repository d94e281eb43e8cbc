"""The models of all GLiNER plugins in the engine: an encoder with the head of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.encoder_model import EncoderModel
from encoder_plugins.families.gliner.config import KEY, GlinerConfig, Head
from encoder_plugins.families.gliner.heads import layout
from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
from encoder_plugins.families.gliner.heads.span import GlinerSpanPooler
from encoder_plugins.families.gliner.heads.token import GlinerTokenPooler

_POOLERS: Mapping[Head, type[GlinerPooler]] = MappingProxyType({"span": GlinerSpanPooler, "token": GlinerTokenPooler})


class GlinerModel(EncoderModel):
    """An encoder with one of GLiNER's heads. vLLM needs one class per architecture: a subclass names its encoder.

    Attributes:
        encoder_class: The encoder.
        encoder_layout: Gives the layout of the encoder's checkpoint from its configuration.
    """

    encoder_class: ClassVar[type[nn.Module]]
    encoder_layout: ClassVar[Callable[..., CheckpointLayout]]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        self.settings = GlinerConfig.from_dict(getattr(config, KEY))
        super().__init__(
            vllm_config=vllm_config,
            encoder=self.encoder_class(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "encoder")),
            pooler=_POOLERS[self.settings.head](config.hidden_size, self.settings),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        encoder = type(self).encoder_layout(self.config)
        return layout.layout(encoder, self.config.hidden_size, self.settings)
