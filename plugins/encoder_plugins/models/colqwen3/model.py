"""ColQwen3 as a vLLM model: vLLM's Qwen3-VL, and a head that projects every row.

vLLM's own class for these checkpoints leaves out the projection's bias.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper
from vllm.multimodal import MULTIMODAL_REGISTRY

from encoder_plugins.families.vision.pooler import rows_pooler


@default_pooling_type(tok_pooling_type="ALL")
@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VisualColQwen3Model(Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """Texts or images in, one row per token out."""

    is_pooling_model = True
    # published files have the names with and without ``model.``; a rule applies to what those before it made
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "model.visual.": "visual.",
            "model.language_model.": "language_model.",
            "model.custom_text_proj.": "custom_text_proj.",
            "language_model.": "language_model.model.",
            "custom_text_proj.": "pooler.projection.layers.0.linear.",
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.pooler = rows_pooler(vllm_config)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint; raises ValueError where it has a tensor that the model has not."""
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded
