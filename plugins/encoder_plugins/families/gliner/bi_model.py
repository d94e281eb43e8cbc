"""GLiNER's bi-encoders in the engine: an encoder for texts, and a pooler that has the one for labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from types import MappingProxyType
from typing import Any, ClassVar

from torch import nn
from vllm.config import CompilationMode, VllmConfig, set_current_vllm_config
from vllm.model_executor.models.utils import maybe_prefix

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.encoder_model import NamedEncoderModel
from encoder_plugins.families.gliner.config import KEY, GlinerConfig, Head
from encoder_plugins.families.gliner.heads import layout
from encoder_plugins.families.gliner.heads.bi_pooler import GlinerBiPooler
from encoder_plugins.families.gliner.heads.bi_span import GlinerBiSpanPooler
from encoder_plugins.families.gliner.heads.bi_token import GlinerBiTokenPooler
from encoder_plugins.families.gliner.heads.label_vectors import LabelVectors

_POOLERS: Mapping[Head, type[GlinerBiPooler]] = MappingProxyType(
    {"span": GlinerBiSpanPooler, "token": GlinerBiTokenPooler}
)


class GlinerBiModel(NamedEncoderModel):
    """Two encoders; that of texts is ``encoder_class``.

    Attributes:
        label_encoder_class: The encoder of labels; takes its configuration as ``config``.
        label_settings_class: What reads that configuration.
        label_layout: Gives the layout of that encoder's checkpoint.
    """

    label_encoder_class: ClassVar[type[nn.Module]]
    label_settings_class: ClassVar[Any]
    label_layout: ClassVar[Callable[..., CheckpointLayout]]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        self.settings = GlinerConfig.from_dict(getattr(config, KEY))
        labels = self.settings.label_encoder
        if labels is None:
            raise ValueError("config.json: gliner.label_encoder is missing: labels have no encoder")
        own = self.label_settings_class.read(labels.config)
        apart = _apart(vllm_config)
        with set_current_vllm_config(apart):
            encoder = self.label_encoder_class(
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
            prefix=prefix,
            pooler=_POOLERS[self.settings.head](config.hidden_size, self.settings, vectors),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        own, labels = type(self), self.settings.label_encoder
        assert labels is not None
        return layout.bi_layout(
            own.encoder_layout(self.config),
            self.config.hidden_size,
            own.label_layout(labels.config),
            own.label_settings_class.read(labels.config).hidden_size,
            self.settings,
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
