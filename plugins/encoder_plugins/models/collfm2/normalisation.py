"""Pixels as the vision encoder reads them, from bytes: on the model's device.

vLLM does so for its own Qwen3-VL, and not for LFM2-VL. Floats would cost most of the time of transformers' image processor, and a page would
travel to the engine in twice as many bytes (docs/benchmarks/visual.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig

from encoder_plugins.families.vision.published import image_processor

# what transformers assumes where the processor's file does not say
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255}
)


class Normalisation(nn.Module):
    """Rescales and normalises patches, to the last bit as transformers' image processor does it on a host.

    Args:
        mean: Of each channel, for pixels from 0 to 1.
        std: Likewise.
        rescale: What a byte is multiplied by.
        values: Numbers of a patch, in which the channels of a pixel lie next to each other.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], rescale: float, *, values: int) -> None:
        super().__init__()
        for name, numbers in (("mean", mean), ("std", std)):
            # the factor is a number of Python's, as there
            scaled = torch.tensor(numbers, dtype=torch.float32) * (1.0 / rescale)
            self.register_buffer(name, scaled.repeat(values // len(numbers)), persistent=False)

    def forward(self, patches: Tensor, dtype: torch.dtype) -> Tensor:
        """Return patches in ``dtype``; those that are no bytes were normalised by the host, and are returned as they are.

        Args:
            patches: `[..., values]`.
            dtype: Of the encoder.

        Returns:
            `[..., values]`.
        """
        if patches.dtype != torch.uint8:
            return patches
        return patches.to(torch.float32).sub_(self.mean).div_(self.std).to(dtype)


def normalisation(vllm_config: VllmConfig, values: int) -> Normalisation:
    """Return what the image processor of an artifact would compute, for patches of so many numbers."""
    _, fields = image_processor(Path(vllm_config.model_config.model))
    found = {**_DEFAULTS, **{name: fields[name] for name in _DEFAULTS if fields.get(name) is not None}}
    return Normalisation(found["image_mean"], found["image_std"], found["rescale_factor"], values=values)
