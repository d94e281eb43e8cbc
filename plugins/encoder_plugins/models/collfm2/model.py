"""ColLFM2 as a vLLM model: vLLM's LFM2-VL, and a head that projects every row."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.lfm2_vl import (
    Lfm2VLDummyInputsBuilder,
    Lfm2VLForConditionalGeneration,
    Lfm2VLMultiModalProcessor,
    Lfm2VLProcessingInfo,
)
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper
from vllm.multimodal import MULTIMODAL_REGISTRY

from encoder_plugins.families.vision.pooler import rows_pooler
from encoder_plugins.models.collfm2.normalisation import normalisation


class FlatRotation(nn.Module):
    """Rotary positions of queries and keys whose heads are one axis.

    vLLM's LFM2 hands over three axes; its kernel for CPUs takes the last one for all of a token, and reads out of bounds.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return `[tokens, heads * size]` of each, for `[tokens, heads, size]`."""
        rotated: tuple[Tensor, Tensor] = self.inner(positions, query.flatten(1), key.flatten(1))
        return rotated


@default_pooling_type(tok_pooling_type="ALL")
@MULTIMODAL_REGISTRY.register_processor(
    Lfm2VLMultiModalProcessor, info=Lfm2VLProcessingInfo, dummy_inputs=Lfm2VLDummyInputsBuilder
)
class VisualColLfm2Model(Lfm2VLForConditionalGeneration):  # type: ignore[misc]
    """Texts or images in, one row per token out."""

    is_pooling_model = True
    # vLLM's processor then leaves pixels as bytes
    supports_mm_device_do_normalize = True
    # published files have the names with and without ``model.``; a rule applies to what those before it made
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "model.": "",
            "language_model.": "language_model.model.",
            "custom_text_proj.": "pooler.projection.layers.0.linear.",
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        for layer in self.language_model.model.layers:
            if (attention := getattr(layer, "self_attn", None)) is not None:
                attention.rotary_emb = FlatRotation(attention.rotary_emb)
        self.pooler = rows_pooler(vllm_config)
        weight = self.vision_tower.vision_model.embeddings.patch_embedding.weight
        self.normalisation = normalisation(vllm_config, weight[0].numel())

    def image_pixels_to_features(self, pixel_values: Tensor, spatial_shapes: Tensor) -> list[Tensor]:
        """Return the rows of each view, `[tokens, width]`.

        Args:
            pixel_values: `[views, patches, values]`; patches behind those of a view are not read.
            spatial_shapes: Rows and columns of patches, `[views, 2]`.
        """
        dtype = self.vision_tower.vision_model.embeddings.patch_embedding.weight.dtype
        pixels = self.normalisation(pixel_values, dtype)
        rows: list[Tensor] = super().image_pixels_to_features(pixels, spatial_shapes)
        return rows

    def _prepare_lfm2vl_cudagraph_values(self, pixel_values: Tensor, spatial_shapes: Tensor) -> dict[str, Tensor]:
        """Return the inputs of vLLM's graphs of the vision encoder, which do not pass ``image_pixels_to_features``."""
        dtype = self.vision_tower.vision_model.embeddings.patch_embedding.weight.dtype
        values: dict[str, Tensor] = super()._prepare_lfm2vl_cudagraph_values(
            self.normalisation(pixel_values, dtype), spatial_shapes
        )
        return values

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint; raises ValueError where it has a tensor that the model has not."""
        # of the language model, whose head is not used
        own = ((name, tensor) for name, tensor in weights if name != "lm_head.weight")
        loaded: set[str] = AutoWeightsLoader(self).load_weights(own, mapper=self.hf_to_vllm_mapper)
        return loaded
