"""The head of visual retrievers: rows as those of text retrievers, projected in float32."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler.common import PoolingParamsUpdate

from encoder_plugins.backbones.sendable import keep_sendable
from encoder_plugins.families.retrieval.config import KEY, RetrievalConfig
from encoder_plugins.families.retrieval.dense_layers import DenseChain
from encoder_plugins.families.retrieval.pooler import RowsPooler


class VisualRowsPooler(RowsPooler):
    """Answers each request with float32 rows `[rows, dimensions]`, or with float32 scores `[1, queries]`."""

    def __init__(self, config: RetrievalConfig) -> None:
        super().__init__(config)
        # few rows beside the work of the model, and each is compared by itself
        self.projection = DenseChain(config.projection, torch.float32)

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        """Return nothing: the backbone is vLLM's own, and its tokens have no marks."""
        del task
        return PoolingParamsUpdate()


def rows_pooler(vllm_config: VllmConfig) -> VisualRowsPooler:
    """Return the head that an artifact's config.json describes."""
    pooler = VisualRowsPooler(RetrievalConfig.from_dict(getattr(vllm_config.model_config.hf_config, KEY)))
    keep_sendable(pooler)
    return pooler
