"""Convert a ColQwen3 checkpoint into the model folder of an artifact: the published weights, and configuration that vLLM reads.

Imports torch and transformers, and no module of the library that published it. Whether the result is right is for the
reference to say, which the library computes from the published files.
"""

from __future__ import annotations

from pathlib import Path

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision import qwen3_vl_conversion as conversion
from encoder_plugins.families.vision.config import VisualConfig
from encoder_plugins.families.vision.conversion import PROJECTION, rows_config
from encoder_plugins.models.colqwen3.published import Settings

ARCHITECTURE = "VisualColQwen3Model"
QUERY = "Query: "
QUERY_END, QUERY_ENDS = "<|endoftext|>", 10
IMAGE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"


def convert(settings: Settings, folder: Path, target: Path) -> None:
    """Write the model folder of an artifact.

    Args:
        settings: What the checkpoint says.
        folder: The checkpoint, its weights as safetensors.
        target: The folder to write; it exists and is empty.

    Raises:
        SourceFileNotFound: Something is missing.
        Unsupported: Something is not served, or the pieces do not belong together.
    """
    backbone, width, dimensions = settings.backbone, settings.backbone.width, settings.dimensions
    head = {f"{PROJECTION}weight": (dimensions, width), f"{PROJECTION}bias": (dimensions,)}
    conversion.check_weights(backbone, folder, head, of="ColQwen3")
    tokenizer, own = conversion.write_tokenizer(folder, target)
    image = conversion.image_prompt(backbone, own, IMAGE)
    suffix = own.encode(QUERY_END * QUERY_ENDS, add_special_tokens=False).ids
    if len(suffix) != QUERY_ENDS or len(set(suffix)) != 1:
        raise Unsupported(f"the tokenizer has no token {QUERY_END}")
    images = VisualConfig(
        image_prompt=image,
        image_token=backbone.image_token,
        query_suffix=tuple(suffix),
        reserved=conversion.reserved(backbone, tokenizer, own),
        bounds=backbone.bounds,
    )
    served = rows_config(width=width, dimensions=dimensions, positions=backbone.positions, query=QUERY)
    conversion.write_model(backbone, folder, target, served, images, architectures=[ARCHITECTURE])
