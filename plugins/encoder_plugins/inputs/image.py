"""The images of a request: from base64 to pixels, with a stated outcome for every kind of file. Pure.

| an image | its outcome |
|---|---|
| PNG, JPEG, WebP, TIFF, GIF | decoded; of several frames or pages only the first is read |
| another format, a path | refused |
| an address | refused, or fetched before: `inputs.remote` |
| more bytes or pixels than the limits, or sides of a ratio above 200 | refused, before anything is decoded |
| one that costs more than its pixels (`inputs.image_work`), a TIFF whose tiles have more pixels than the limit | refused, before that, too |
| truncated or damaged, or of a variant that Pillow does not read | refused |
| transparency, of a palette, too | flattened on white |
| CMYK, YCbCr, grey, black and white, a palette | converted to RGB |
| a colour profile | ignored, as the libraries do |
| one channel of 16 or 32 bits | refused: Pillow would clip it to white |
| an EXIF orientation | applied |

Nothing is fetched or opened here.
"""

from __future__ import annotations

import io
import struct
from typing import Final, Protocol

from PIL import Image

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs import image_work
from encoder_plugins.inputs.data_uri import file_of

FORMATS: Final = ("PNG", "JPEG", "WEBP", "TIFF", "GIF")
# Qwen's processors raise above it, and others make an image of one row of patches
MOST_RATIO: Final = 200

# modes with 8 bits a channel at most
_MODES = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
# pixels of all tiles, for each of the limit
_MOST_OF_TILES = 4
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
    if reason := image_work.excess(content):
        raise InvalidRequest(reason, param=path)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise InvalidRequest(f"too many pixels; the limit is {limits.image_pixels} an image", param=path) from None
    except Exception:
        # Pillow's parsers raise anything for a damaged header
        raise InvalidRequest(_unread(content), param=path) from None
    with image:
        _check(image, limits, path)
        _check_tiles(image, content, limits, path)
        try:
            image.load()
            found = _upright(_rgb(image), _orientation(image))
        except Exception:
            # and anything for damaged data: OSError, SyntaxError, ValueError, struct.error, zlib.error
            raise InvalidRequest(_damaged(image.format), param=path) from None
    return found


def _unread(content: bytes) -> str:
    known = next((name for name, signature in image_work.SIGNATURES.items() if signature.match(content)), None)
    return f"not an image that can be read; known are {', '.join(FORMATS)}" if known is None else _damaged(known)


def _damaged(format_: str | None) -> str:
    return f"the {format_} file is truncated or damaged, or of a variant that Pillow does not read"


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


def _check_tiles(image: Image.Image, content: bytes, limits: ImageLimits, path: str) -> None:
    if image.format != "TIFF":
        return
    try:
        tiles = image_work.tiles(content)
    except (ValueError, struct.error):
        raise InvalidRequest(_damaged("TIFF"), param=path) from None
    if tiles is None:
        return
    width, height, count = tiles
    # those at the edges reach beyond the image
    if width * height > limits.image_pixels or width * height * count > _MOST_OF_TILES * limits.image_pixels:
        raise InvalidRequest(
            f"tiles of {width} × {height} pixels ({count} in all); the limit is {limits.image_pixels} pixels an image",
            param=path,
        )


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "La":
        # Pillow converts it to nothing else
        image = image.convert("LA")
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
