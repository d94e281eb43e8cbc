"""Nemotron ColEmbed as a vLLM model: vLLM's Qwen3-VL with attention in both directions, whose last norm is left out.

vLLM's own class for these checkpoints is causal and applies the norm. Here the artifact's config.json says ``is_causal: false``, by
which vLLM gives the layers encoder-only attention.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
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

# of published files: the norm that is left out, and the head of the language model
LEFT_OUT = ("language_model.norm.", "model.language_model.norm.", "lm_head.")


class ResidualSum(nn.Module):
    """Stands where vLLM's language model has its last norm: adds the residual, and normalises nothing."""

    def forward(self, rows: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return `[tokens, width]` for `[tokens, width]`, in the form in which vLLM's norms return it."""
        return rows if residual is None else (rows + residual, residual)


@default_pooling_type(tok_pooling_type="ALL")
@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class VisualNemotronModel(Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """Texts or images in, one row per token out."""

    is_pooling_model = True
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "model.visual.": "visual.",
            "model.language_model.": "language_model.",
            "language_model.": "language_model.model.",
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.language_model.model.norm = ResidualSum()
        self.pooler = rows_pooler(vllm_config)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint; raises ValueError where it has a tensor that the model has not."""
        used = ((name, tensor) for name, tensor in weights if not name.startswith(LEFT_OUT))
        loaded: set[str] = AutoWeightsLoader(self).load_weights(used, mapper=self.hf_to_vllm_mapper)
        return loaded
