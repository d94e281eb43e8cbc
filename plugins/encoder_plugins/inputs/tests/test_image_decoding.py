"""Each kind of image file has one outcome: pixels, or a refusal that names the field and the limit."""

from __future__ import annotations

import base64
import io
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs import image_work
from encoder_plugins.inputs.image import content_of, decode


@dataclass(frozen=True)
class Limits:
    images: int = 1
    image_bytes: int = 100_000
    image_pixels: int = 1_000_000


LIMITS = Limits()
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def picture(width: int = 4, height: int = 2) -> Image.Image:
    """A picture that is red, but for a blue first row and a green first pixel."""
    image = Image.new("RGB", (width, height), RED)
    for column in range(width):
        image.putpixel((column, 0), BLUE)
    image.putpixel((0, 0), GREEN)
    return image


def file(image: Image.Image, format_: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format_, **options)
    return stream.getvalue()


def png(width: int, height: int, *, bits: int = 1, colours: int = 0) -> bytes:
    """A PNG of zeros whose size may be anything; it is compressed as far as that goes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    row = bytes(1 + -(-width * bits * (3 if colours == 2 else 1) // 8))
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def oriented(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return file(picture(), "PNG", exif=exif)


def oriented_by_a_letter() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 1
    number, letter = bytes.fromhex("0112 0003 00000001 0001"), bytes.fromhex("0112 0002 00000002 7500")
    assert number in exif.tobytes()
    return file(picture(), "PNG", exif=exif.tobytes().replace(number, letter))


def swapped_profile() -> bytes:
    """A colour profile in which red and blue have changed places."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile.replace(b"rXYZ", b"xxxx").replace(b"bXYZ", b"rXYZ").replace(b"xxxx", b"bXYZ")


def transparent_palette() -> bytes:
    image = Image.new("P", (4, 2), 1)
    image.putpalette([*RED, *BLUE])
    image.putpixel((0, 0), 0)
    return file(image, "PNG", transparency=0)


def repeated_scan(times: int) -> bytes:
    """A progressive JPEG of grey whose last scan, of six, is there so many times more."""
    content = file(Image.new("L", (64, 64)), "JPEG", progressive=True)
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + last * times + content[-2:]


def tiled(width: int, height: int, size: tuple[int, int] = (5, 3), *, kind: int = 4) -> bytes:
    """A compressed TIFF of grey whose tiles have one size and whose image has another; ``kind`` is the type of its numbers."""
    count = -(-size[0] // max(width, 1)) * -(-size[1] // max(height, 1))
    packed = zlib.compress(bytes(width * height))
    tags = {256: size[0], 257: size[1], 258: 8, 259: 8, 262: 1, 277: 1, 322: width, 323: height}
    end = 8 + 2 + 12 * (len(tags) + 2) + 4
    ifd = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, value in tags.items())
    places, sizes = (end, end + 4 * count) if count > 1 else (end, len(packed))
    ifd += struct.pack("<HHII", 324, 4, count, places) + struct.pack("<HHII", 325, 4, count, sizes)
    lists = struct.pack("<I", end + 8 * count) * count + struct.pack("<I", len(packed)) * count if count > 1 else b""
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags) + 2) + ifd + bytes(4) + lists + packed


def with_parts(format_: str, part: bytes, count: int) -> bytes:
    """A picture with a part that says nothing so many times more, before its pixels."""
    content = file(picture(), format_)
    # behind the signature, the first chunk, or before the image
    place = {"JPEG": 2, "PNG": 33, "GIF": content.find(b",")}[format_]
    return content[:place] + part * count + content[place:]


def many_tags(count: int) -> bytes:
    """A TIFF with so many tags of its own, beside the eleven that Pillow writes."""
    content = file(Image.new("L", (4, 2), 9), "TIFF")
    (place,) = struct.unpack_from("<I", content, 4)
    (entries,) = struct.unpack_from("<H", content, place)
    own = b"".join(struct.pack("<HHII", 40_000 + number, 3, 1, 0) for number in range(count))
    old = content[place + 2 : place + 2 + 12 * entries]
    # the directory is written again, behind everything
    return (
        content[:4]
        + struct.pack("<I", len(content))
        + content[8:]
        + struct.pack("<H", entries + count)
        + old
        + own
        + bytes(4)
    )


def premultiplied() -> bytes:
    """A TIFF of grey whose alpha channel is declared as multiplied in: a type of samples of 1 instead of 2."""
    content = file(Image.new("LA", (1, 1), (28, 128)), "TIFF")
    unmultiplied = bytes.fromhex("5201 0300 01000000 0200")
    assert unmultiplied in content
    return content.replace(unmultiplied, unmultiplied[:-2] + b"\1\0")


def half_transparent(mode: str) -> bytes:
    return file(Image.new("RGBA", (2, 2), (0, 0, 0, 128)).convert(mode), "PNG")


PIXELS: dict[str, tuple[Callable[[], bytes], tuple[int, int], tuple[int, int, int]]] = {
    # the file, its size, its first pixel
    "png": (lambda: file(picture(), "PNG"), (4, 2), GREEN),
    "webp": (lambda: file(picture(), "WEBP", lossless=True), (4, 2), GREEN),
    "tiff": (lambda: file(picture(), "TIFF"), (4, 2), GREEN),
    "compressed tiff": (lambda: file(picture(), "TIFF", compression="tiff_lzw"), (4, 2), GREEN),
    "gif": (lambda: file(picture(), "GIF"), (4, 2), GREEN),
    "jpeg": (lambda: file(Image.new("RGB", (16, 16), WHITE), "JPEG"), (16, 16), WHITE),
    "cmyk": (lambda: file(Image.new("CMYK", (16, 16), (0, 0, 0, 0)), "JPEG"), (16, 16), WHITE),
    "first frame of several": (
        lambda: file(picture(), "GIF", save_all=True, append_images=[Image.new("RGB", (4, 2), WHITE)] * 3),
        (4, 2),
        GREEN,
    ),
    "first page of several": (
        lambda: file(picture(), "TIFF", save_all=True, append_images=[Image.new("RGB", (9, 9), WHITE)]),
        (4, 2),
        GREEN,
    ),
    "black and white": (lambda: file(Image.new("1", (3, 3), 1), "PNG"), (3, 3), WHITE),
    "grey": (lambda: file(Image.new("L", (3, 3), 7), "PNG"), (3, 3), (7, 7, 7)),
    "palette": (lambda: file(picture().convert("P"), "PNG"), (4, 2), GREEN),
    "palette with transparency": (transparent_palette, (4, 2), WHITE),
    "half transparent": (lambda: half_transparent("RGBA"), (2, 2), (127, 127, 127)),
    "half transparent grey": (lambda: half_transparent("LA"), (2, 2), (127, 127, 127)),
    "an orientation that there is not": (lambda: oriented(99), (4, 2), GREEN),
    "an orientation of text": (oriented_by_a_letter, (4, 2), GREEN),
    "a damaged colour profile": (lambda: file(picture(), "PNG", icc_profile=b"none"), (4, 2), GREEN),
    "16 bits of three channels": (lambda: png(5, 5, bits=16, colours=2), (5, 5), (0, 0, 0)),
    "one pixel": (lambda: file(Image.new("RGB", (1, 1), WHITE), "PNG"), (1, 1), WHITE),
    "as many scans as are read": (lambda: repeated_scan(94), (64, 64), (0, 0, 0)),
    "two scans more behind the end": (lambda: repeated_scan(94) + repeated_scan(2), (64, 64), (0, 0, 0)),
    "a tile larger than the image": (lambda: tiled(992, 1008), (5, 3), (0, 0, 0)),
    "tiles of four times the most pixels": (lambda: tiled(2000, 400, (600, 1601)), (600, 1601), (0, 0, 0)),
    "several tiles": (lambda: tiled(16, 32, (100, 100)), (100, 100), (0, 0, 0)),
    "premultiplied grey": (premultiplied, (1, 1), (155, 155, 155)),
    "the most pixels": (lambda: png(1000, 1000), (1000, 1000), (0, 0, 0)),
    "the longest side": (lambda: png(4000, 20), (4000, 20), (0, 0, 0)),
}

REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "another format": (
        lambda: file(picture(), "BMP"),
        "not an image that can be read; known are PNG, JPEG, WEBP, TIFF",
    ),
    "svg": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image that can be read"),
    "pdf": (lambda: b"%PDF-1.7\n", "not an image that can be read"),
    "postscript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image that can be read"),
    "text": (lambda: b"just words", "not an image that can be read"),
    "truncated png": (lambda: noise("PNG")[:3000], "the PNG file is truncated or damaged"),
    "truncated jpeg": (lambda: noise("JPEG")[:3000], "the JPEG file is truncated or damaged"),
    "truncated webp": (lambda: noise("WEBP")[:1000], "truncated or damaged|not an image that can be read"),
    "truncated tiff": (lambda: noise("TIFF")[:3000], "truncated or damaged|not an image that can be read"),
    "truncated gif": (lambda: noise("GIF")[:2000], "the GIF file is truncated or damaged"),
    "truncated header": (lambda: file(picture(), "PNG")[:20], "the PNG file is truncated or damaged"),
    "no width": (lambda: png(0, 5), "the PNG file is truncated or damaged"),
    "no height": (lambda: png(5, 0), "the PNG file is truncated or damaged"),
    "12 bits of jpeg": (
        lambda: re.sub(rb"(?<=\xff\xc0\0.)\x08", b"\x0c", noise("JPEG")),
        "the JPEG file is truncated or damaged, or of a variant that Pillow does not read",
    ),
    "a jpeg of many scans": (lambda: repeated_scan(95), "a JPEG of more than 100 scans, the limit"),
    "a small tiff in a large tile": (
        lambda: tiled(1008, 1008),
        r"tiles of 1008 × 1008 pixels \(1 in all\); the limit is 1000000",
    ),
    "a thin tiff in wide tiles": (
        lambda: tiled(62_496, 16, (20, 4000)),
        r"tiles of 62496 × 16 pixels \(250 in all\); the limit is 1000000 pixels an image",
    ),
    "a tile without a width": (lambda: tiled(0, 16), "the TIFF file is truncated or damaged"),
    "a tile of a negative side": (lambda: tiled(16, 16, kind=8), "the TIFF file is truncated or damaged"),
    "too many pixels": (lambda: png(1001, 1000), "1001 × 1000 are 1001000 pixels; the limit is 1000000 an image"),
    "a bomb": (lambda: png(9000, 9000), "9000 × 9000 are 81000000 pixels; the limit is 1000000"),
    "a bomb that Pillow refuses": (lambda: png(20_000, 20_000), "too many pixels; the limit is 1000000"),
    "a thin line": (lambda: png(1, 30_000), "1 × 30000: a side may be 200 times the other at most"),
    "a long line": (lambda: png(4001, 20), "4001 × 20: a side may be 200 times"),
    "16 bits of grey": (lambda: png(5, 5, bits=16), r"more than 8 bits \(mode I;16\)"),
    "16 bits of grey in tiff": (
        lambda: file(Image.fromarray(np.zeros((5, 5), np.uint16)), "TIFF"),
        r"more than 8 bits \(mode I;16\)",
    ),
    "floats": (lambda: file(Image.fromarray(np.zeros((5, 5), np.float32)), "TIFF"), r"more than 8 bits \(mode F\)"),
}


def noise(format_: str) -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8)
    return file(Image.fromarray(values), format_)


@pytest.mark.parametrize("name", PIXELS)
def test_an_image_becomes_its_pixels(name: str) -> None:
    make, size, first = PIXELS[name]
    found = decode(make(), LIMITS, path="data.image")
    assert (found.mode, found.size) == ("RGB", size)
    assert found.getpixel((0, 0)) == first


@pytest.mark.parametrize("orientation", range(9))
def test_an_orientation_is_applied_as_pillow_applies_it(orientation: int) -> None:
    content = oriented(orientation)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    found = decode(content, LIMITS, path="data.image")
    assert (found.size, found.tobytes()) == (expected.size, expected.tobytes())


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_a_colour_profile_changes_no_pixel(format_: str) -> None:
    image, profile = Image.new("RGB", (16, 16), RED), swapped_profile()
    shown = ImageCms.profileToProfile(image, io.BytesIO(profile), ImageCms.createProfile("sRGB"))
    assert shown is not None
    assert shown.getpixel((0, 0)) == BLUE
    with_profile = decode(file(image, format_, icc_profile=profile), LIMITS, path="data.image")
    assert with_profile.tobytes() == decode(file(image, format_), LIMITS, path="data.image").tobytes()


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_file_that_is_not_decoded_is_refused(name: str) -> None:
    make, says = REFUSED[name]
    with pytest.raises(InvalidRequest, match=says) as refused:
        decode(make(), LIMITS, path="data.images[3]")
    assert refused.value.param == "data.images[3]"


@pytest.mark.parametrize(
    ("format_", "part", "each", "says"),
    [
        ("JPEG", b"\xff\xe5\0\2", 1, "a JPEG of more than 50000 segments and bytes between them, the limit"),
        ("JPEG", b"\xff", 1, "a JPEG of more than 50000 segments and bytes between them, the limit"),
        ("PNG", struct.pack(">I4sI", 0, b"prVt", zlib.crc32(b"prVt")), 1, "a PNG of more than 50000 chunks, the limit"),
        ("GIF", b"!\xfe\1a\1b\0", 3, "a GIF of more than 50000 blocks before its first image, the limit"),
    ],
    ids=["segments", "filling", "chunks", "blocks"],
)
def test_a_file_of_more_parts_than_any_other_is_refused(format_: str, part: bytes, each: int, says: str) -> None:
    # an ordinary one has up to ten
    most = image_work.MOST_PARTS // each
    found = decode(with_parts(format_, part, most - 10), LIMITS, path="data.image")
    assert found.tobytes() == decode(with_parts(format_, part, 0), LIMITS, path="data.image").tobytes()
    with pytest.raises(InvalidRequest, match=says):
        decode(with_parts(format_, part, most + 1), LIMITS, path="data.image")
    # its end may be missing
    with pytest.raises(InvalidRequest, match=f"the {format_} file is truncated or damaged"):
        decode(with_parts(format_, part, 100)[:200], LIMITS, path="data.image")


def test_a_tiff_of_many_tags_is_refused() -> None:
    own = len(Image.open(io.BytesIO(many_tags(0))).tag_v2)  # type: ignore[attr-defined]
    assert decode(many_tags(1000 - own), LIMITS, path="data.image").getpixel((0, 0)) == (9, 9, 9)
    with pytest.raises(InvalidRequest, match="a TIFF of more than 1000 tags, the limit"):
        decode(many_tags(1001 - own), LIMITS, path="data.image")


def test_damage_anywhere_is_refused_or_has_pixels() -> None:
    random = np.random.default_rng(1)
    outcomes = set()
    for format_ in ("PNG", "JPEG", "WEBP", "TIFF", "GIF"):
        sound = np.frombuffer(noise(format_), np.uint8)
        for _ in range(40):
            damaged = sound.copy()
            damaged[random.integers(0, len(sound), 3)] = random.integers(0, 256, 3)
            try:
                outcomes.add(decode(damaged.tobytes(), LIMITS, path="data.image").mode)
            except InvalidRequest as refused:
                outcomes.add(refused.param or "")
    assert outcomes == {"RGB", "data.image"}


@pytest.mark.parametrize(
    "prefix",
    ["", "data:image/png;base64,", "data:;base64,", "data:image/jpeg;name=a;base64,", "DATA:image/png;Base64,"],
)
def test_base64_and_data_uris_are_read(prefix: str) -> None:
    content = noise("PNG")
    assert content_of(prefix + base64.b64encode(content).decode(), LIMITS, path="data.image") == content
    most = bytes(100_000)
    assert content_of(prefix + base64.b64encode(most).decode(), LIMITS, path="data.image") == most
    # with a line break after each 76 characters, which count for nothing
    broken = base64.encodebytes(most).decode()
    assert {
        content_of(prefix + each, LIMITS, path="data.image") for each in (broken, broken.replace("\n", "\r\n"))
    } == {most}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("https://example.org/a.png", "an address is not fetched"),
        ("file:///etc/passwd", "an address is not fetched"),
        ("data:image/png,abc", "an address is not fetched"),
        ("/etc/passwd", "neither base64 nor a data URI"),
        ("../images/a.png", "neither base64 nor a data URI"),
        ("AAA", "neither base64 nor a data URI"),
        ("AA\nA", "neither base64 nor a data URI"),
        ("AAA A", "neither base64 nor a data URI"),
        ("ÄÄÄÄ", "neither base64 nor a data URI"),
        ("\ud800AAA", "neither base64 nor a data URI"),
        ("", "the image is empty"),
        ("data:image/png;base64,", "the image is empty"),
        ("A" * 200_000, "about 150000 bytes; the limit is 100000 an image"),
        # it is not decoded where its length alone shows that it is too large
        ("!" * 133_340, "about 100005 bytes; the limit is 100000 an image"),
        (base64.b64encode(bytes(100_001)).decode(), "100001 bytes; the limit is 100000 an image"),
    ],
)
def test_what_holds_no_image_is_refused(value: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        content_of(value, LIMITS, path="data.image")
    assert refused.value.param == "data.image"
