"""The images of a request: from base64 to pixels, with a stated outcome for every kind of file. Pure.

| an image | its outcome |
|---|---|
| PNG, JPEG, WebP, TIFF, GIF | decoded; of several frames or pages only the first is read |
| another format, a path | refused |
| an address | refused, or fetched before: `inputs.remote` |
| more bytes or pixels than the limits, or sides of a ratio above 200 | refused, before anything is decoded |
| truncated or damaged | refused |
| transparency, of a palette, too | flattened on white |
| CMYK, YCbCr, grey, black and white, a palette | converted to RGB |
| a colour profile | ignored, as the libraries do |
| one channel of 16 or 32 bits | refused: Pillow would clip it to white |
| an EXIF orientation | applied |

Nothing is fetched or opened here.
"""

from __future__ import annotations

import io
from typing import Final, Protocol

from PIL import Image

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs.data_uri import file_of

FORMATS: Final = ("PNG", "JPEG", "WEBP", "TIFF", "GIF")
# Qwen's processors raise above it, and others make an image of one row of patches
MOST_RATIO: Final = 200

# modes with 8 bits a channel at most
_MODES = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
_ORIENTATION = 0x0112
_TRANSPOSED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageLimits(Protocol):
    """The limits of requests that hold images; ``encoder_plugins.plugin.IMAGE_LIMITS`` describes them."""

    @property
    def images(self) -> int:
        """Images of one request."""

    @property
    def image_bytes(self) -> int:
        """Bytes of the file of one image."""

    @property
    def image_pixels(self) -> int:
        """Pixels of one image."""


def content_of(value: str, limits: ImageLimits, *, path: str) -> bytes:
    """Return the bytes of an image file from a data URI, or from base64 alone.

    Args:
        value: The field.
        limits: What the file is held to.
        path: The field's path, for messages.

    Raises:
        InvalidRequest: It is neither, or empty, or exceeds a limit.
    """
    return file_of(value, limits.image_bytes, what="image", media_type="image/...", path=path)


def decode(content: bytes, limits: ImageLimits, *, path: str) -> Image.Image:
    """Return the pixels of an image file, mode RGB. Takes milliseconds for each megapixel: call it in a thread.

    Args:
        content: The file.
        limits: What it is held to; they are checked before pixels are decoded.
        path: The field's path, for messages.

    Raises:
        InvalidRequest: It is not an image that is decoded; the module's documentation has the outcome of each kind.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise InvalidRequest(f"too many pixels; the limit is {limits.image_pixels} an image", param=path) from None
    except Exception:
        # Pillow's parsers raise anything for a damaged header
        raise InvalidRequest(f"not an image that can be read; known are {', '.join(FORMATS)}", param=path) from None
    with image:
        _check(image, limits, path)
        try:
            image.load()
            found = _upright(_rgb(image), _orientation(image))
        except Exception:
            # and anything for damaged data: OSError, SyntaxError, ValueError, struct.error, zlib.error
            raise InvalidRequest(f"the {image.format} file is truncated or damaged", param=path) from None
    return found


def _check(image: Image.Image, limits: ImageLimits, path: str) -> None:
    width, height = image.size
    if width * height > limits.image_pixels:
        raise InvalidRequest(
            f"{width} × {height} are {width * height} pixels; the limit is {limits.image_pixels} an image", param=path
        )
    if max(width, height) > MOST_RATIO * min(width, height):
        raise InvalidRequest(f"{width} × {height}: a side may be {MOST_RATIO} times the other at most", param=path)
    if image.mode not in _MODES:
        raise InvalidRequest(
            f"the image has pixels of more than 8 bits (mode {image.mode}); send it with 8 bits a channel", param=path
        )


def _rgb(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    above = image.convert("RGBA")
    flat = Image.new("RGB", above.size, "white")
    flat.paste(above, mask=above.getchannel("A"))
    return flat


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        # a damaged EXIF block says nothing about the pixels
        return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    transposed = _TRANSPOSED.get(orientation)
    return image if transposed is None else image.transpose(transposed)
