"""GLiNER's bi-encoders in the engine: an encoder for texts, and a pooler that has another one for labels."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar

from torch import nn
from vllm.config import CompilationMode, VllmConfig, set_current_vllm_config
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.encoder_model import EncoderModel
from encoder_plugins.families.gliner.config import KEY, GlinerConfig
from encoder_plugins.families.gliner.heads import layout
from encoder_plugins.families.gliner.heads.bi_token import GlinerBiTokenPooler
from encoder_plugins.families.gliner.heads.label_vectors import LabelVectors


class GlinerBiModel(EncoderModel):
    """Two encoders of one class. vLLM needs one class per architecture: a subclass names them.

    Attributes:
        encoder_class: The encoder; takes its configuration as ``config``.
        settings_class: What reads that configuration.
        encoder_layout: Gives the layout of the encoder's checkpoint from its configuration.
    """

    encoder_class: ClassVar[type[nn.Module]]
    settings_class: ClassVar[Any]
    encoder_layout: ClassVar[Callable[..., CheckpointLayout]]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        self.settings = GlinerConfig.from_dict(getattr(config, KEY))
        labels = self.settings.label_encoder
        if labels is None:
            raise ValueError("config.json: gliner.label_encoder is missing: labels have no encoder")
        own = self.settings_class.read(labels.config)
        apart = _apart(vllm_config)
        with set_current_vllm_config(apart):
            encoder = self.encoder_class(
                vllm_config=apart, prefix=maybe_prefix(prefix, "label_encoder"), config=labels.config
            )
        vectors = LabelVectors(
            encoder,
            encoder_size=own.hidden_size,
            size=self.settings.hidden_size,
            projection=labels.projection,
            vocabulary=own.vocabulary,
            max_tokens=labels.max_tokens,
            vllm_config=apart,
        )
        super().__init__(
            vllm_config=vllm_config,
            encoder=self.encoder_class(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "encoder")),
            pooler=GlinerBiTokenPooler(config.hidden_size, self.settings, vectors),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        make = type(self).encoder_layout
        labels = self.settings.label_encoder
        assert labels is not None
        label_size = self.settings_class.read(labels.config).hidden_size
        return layout.bi_layout(
            make(self.config), self.config.hidden_size, make(labels.config), label_size, self.settings
        )


def _apart(vllm_config: VllmConfig) -> VllmConfig:
    """Return the configuration of layers that only a pooler calls.

    vLLM plans the batches of every attention layer that its configuration knows, and refuses layers with different heads; these get
    their batches from ``LabelVectors``. Nothing is compiled for the few shapes that they have.
    """
    apart = copy(vllm_config)
    apart.compilation_config = copy(vllm_config.compilation_config)
    apart.compilation_config.static_forward_context = {}
    apart.compilation_config.mode = CompilationMode.NONE
    return apart
