"""The models of all GLiNER2 plugins in the engine: an encoder with the span head."""

from __future__ import annotations

from vllm.config import VllmConfig

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout
from encoder_plugins.backbones.encoder_model import NamedEncoderModel
from encoder_plugins.families.gliner2.config import KEY, Gliner2Config
from encoder_plugins.families.gliner2.heads import layout, pooler


class Gliner2SpanModel(NamedEncoderModel):
    """An encoder with GLiNER2's span head."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        self.settings = Gliner2Config.from_dict(getattr(config, KEY))
        super().__init__(
            vllm_config=vllm_config,
            prefix=prefix,
            pooler=pooler.Gliner2SpanPooler(config.hidden_size, self.settings),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        encoder = type(self).encoder_layout(self.config)
        return layout.layout(encoder, self.config.hidden_size, self.settings)
