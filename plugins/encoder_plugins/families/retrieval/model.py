"""The models of all retrievers of one vector per token in the engine: an encoder with the rows' head."""

from __future__ import annotations

from vllm.config import VllmConfig

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, join
from encoder_plugins.backbones.encoder_model import NamedEncoderModel
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.config import KEY, PROJECTION, RetrievalConfig
from encoder_plugins.families.retrieval.pooler import RowsPooler

# where the pooler has the modules of the projection
PARAMETERS = "pooler.projection.layers."


class MultiVectorModel(NamedEncoderModel):
    """An encoder with one row per token."""

    query_only_tokens = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        self.settings = RetrievalConfig.from_dict(getattr(vllm_config.model_config.hf_config, KEY))
        super().__init__(
            vllm_config=vllm_config,
            prefix=prefix,
            pooler=RowsPooler(self.settings),
        )

    def layout(self) -> CheckpointLayout:
        """Return what the checkpoint must hold."""
        encoder = type(self).encoder_layout(self.config)
        return join(encoder.under("", "encoder."), dense.layout(self.settings.projection, PROJECTION, PARAMETERS))
