"""From the files of images to pixels of the model's size, in a thread of the server: vLLM's own processor has one thread for all requests."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from hashlib import sha256

import numpy as np
from cachetools import LRUCache
from PIL import Image

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.vision.sizes import Sizes
from encoder_plugins.inputs.image import ImageLimits, decode

# of the cache that one image may take, so that large ones do not drive out all others
_LARGEST_SHARE = 8
# Pillow stores the three channels of a pixel in four
_BYTES_PER_PIXEL = 4


class Pixels:
    """Decodes and scales images, and keeps the pixels of those that came last: rerankers get the same pages with query after query.

    Used by several threads at once.

    Args:
        limits: What files are held to.
        bounds: The sizes of scaled images.
        cache_bytes: Bytes of pixels that are kept, the least recently used go first.
    """

    def __init__(self, limits: ImageLimits, bounds: Sizes, cache_bytes: int) -> None:
        self._limits, self._bounds = limits, bounds
        self._largest = cache_bytes // _LARGEST_SHARE
        self._kept: LRUCache[Hashable, tuple[Image.Image, int]] = LRUCache(cache_bytes, getsizeof=_bytes)
        self._lock = threading.Lock()

    def of(self, content: bytes, *, path: str) -> tuple[Image.Image, int]:
        """Return the image of a file as ``fitted`` does, and the number of its tokens. Nobody may change the image.

        Args:
            content: The file.
            path: The field that it came in, for messages.

        Raises:
            InvalidRequest: It is not an image that is decoded.
        """
        key = sha256(content).digest()
        kept = self.kept(key)
        return self.fit(key, decode(content, self._limits, path=path), path=path) if kept is None else kept

    def kept(self, key: Hashable) -> tuple[Image.Image, int] | None:
        """Return what ``fit`` returned for a key; None where it is not kept."""
        with self._lock:
            return self._kept.get(key)

    def fit(self, key: Hashable, image: Image.Image, *, path: str) -> tuple[Image.Image, int]:
        """Return an image as ``fitted`` does, and keep that.

        Args:
            key: What decides its pixels.
            image: The image, which nobody else changes.
            path: The field that it came in, for messages.

        Raises:
            InvalidRequest: The model has no view for its sides.
        """
        found = fitted(image, self._bounds, path=path)
        if _bytes(found) <= self._largest:
            with self._lock:
                self._kept[key] = found
        return found


def _bytes(found: tuple[Image.Image, int]) -> int:
    image, _ = found
    return image.width * image.height * _BYTES_PER_PIXEL


def fitted(image: Image.Image, bounds: Sizes, *, path: str) -> tuple[Image.Image, int]:
    """Return an RGB image in the model's size, and the number of its tokens.

    Where the model's image processor would scale all of an image to one size, the image has it already, made with the same
    function, so that this processor changes nothing any more, and a request in flight holds no more pixels than the model sees.

    Raises:
        InvalidRequest: The model has no view for its sides; ``path`` is the field that it came in.
    """
    if not bounds.fits(*image.size):
        width, height = image.size
        raise InvalidRequest(f"the image of {width} × {height} pixels is too narrow for this model", param=path)
    size, tokens = bounds.ahead(*image.size), bounds.tokens(*image.size)
    return (image if size == image.size else scaled(image, *size)), tokens


def scaled(image: Image.Image, width: int, height: int) -> Image.Image:
    """Return an RGB image in another size, as the torchvision backend of transformers' image processors makes it."""
    import torch
    from torchvision.transforms.v2 import functional

    channels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    found = functional.resize(
        channels, [height, width], interpolation=functional.InterpolationMode.BICUBIC, antialias=True
    )
    return Image.fromarray(found.permute(1, 2, 0).contiguous().numpy())
