"""From the files of images to pixels of the model's size, in a thread of the server: vLLM's own processor has one thread for all requests."""

from __future__ import annotations

import numpy as np
from PIL import Image

from encoder_plugins.families.vision.sizes import PixelBounds
from encoder_plugins.inputs.image import ImageLimits, decode


def pixels_of(content: bytes, limits: ImageLimits, bounds: PixelBounds, *, path: str) -> tuple[Image.Image, int]:
    """Return the image of a file as ``fitted`` does, and the number of its tokens.

    Args:
        content: The file.
        limits: What it is held to.
        bounds: The sizes of scaled images.
        path: The field that it came in, for messages.

    Raises:
        InvalidRequest: It is not an image that is decoded.
    """
    return fitted(decode(content, limits, path=path), bounds)


def fitted(image: Image.Image, bounds: PixelBounds) -> tuple[Image.Image, int]:
    """Return an RGB image in the model's size, and the number of its tokens.

    The image has the size that the model's image processor would scale it to, made with the same function, so that this
    processor changes nothing any more, and a request in flight holds no more pixels than the model sees.
    """
    size = bounds.scaled(*image.size)
    tokens = bounds.tokens(*image.size)
    # an image that is very narrow would be scaled again: it is left to the processor
    if size != image.size and bounds.scaled(*size) == size:
        image = scaled(image, *size)
    return image, tokens


def scaled(image: Image.Image, width: int, height: int) -> Image.Image:
    """Return an RGB image in another size, as the torchvision backend of transformers' image processors makes it."""
    import torch
    from torchvision.transforms.v2 import functional

    channels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    found = functional.resize(
        channels, [height, width], interpolation=functional.InterpolationMode.BICUBIC, antialias=True
    )
    return Image.fromarray(found.permute(1, 2, 0).contiguous().numpy())
