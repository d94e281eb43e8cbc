"""The models of all GLiNER plugins in the engine: an encoder with the head of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vllm.config import VllmConfig

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.encoder_model import NamedEncoderModel
from encoder_plugins.families.gliner.config import KEY, GlinerConfig, Head
from encoder_plugins.families.gliner.heads import layout
from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
from encoder_plugins.families.gliner.heads.span import GlinerSpanPooler
from encoder_plugins.families.gliner.heads.token import GlinerTokenPooler

_POOLERS: Mapping[Head, type[GlinerPooler]] = MappingProxyType({"span": GlinerSpanPooler, "token": GlinerTokenPooler})


class GlinerModel(NamedEncoderModel):
    """An encoder with one of GLiNER's heads."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        self.settings = GlinerConfig.from_dict(getattr(config, KEY))
        super().__init__(
            vllm_config=vllm_config,
            prefix=prefix,
            pooler=_POOLERS[self.settings.head](config.hidden_size, self.settings),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        encoder = type(self).encoder_layout(self.config)
        return layout.layout(encoder, self.config.hidden_size, self.settings)
