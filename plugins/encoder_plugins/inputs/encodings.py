"""Arrays in responses: as JSON numbers, as base64, or as the bytes of a whole body, without a Python list in between.

Numbers are float32, rounded to 16 bits, or quantised as ``quantize_embeddings`` of sentence-transformers 6.2 does it: to one byte each
between the ranges of calibration vectors, or to one bit each.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import msgspec

Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[Any]
EmbeddingDtype: TypeAlias = Literal["float32", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"]
Encoding: TypeAlias = Literal["float", "base64", "bytes"]

BINARY = "application/octet-stream"
# those that need ranges
CALIBRATED = frozenset({"int8", "uint8"})

# how the numbers of each dtype are written, little-endian; numpy has no bfloat16, whose bits are the upper half of a float32's
_WRITTEN: Mapping[str, str] = {
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int8": "i1",
    "uint8": "u1",
    "binary": "i1",
    "ubinary": "u1",
}
_STEPS = 255


def converted(vectors: Vectors, dtype: EmbeddingDtype, ranges: Vectors | None = None) -> Numbers:
    """Return vectors in another dtype.

    Args:
        vectors: `[rows, width]`.
        dtype: What the numbers become. ``binary`` and ``ubinary`` are signs, eight of them in a byte.
        ranges: `[2, width]`: the smallest and the largest number of each place among calibration vectors; int8 and uint8 need them.

    Returns:
        `[rows, width]`, or `[rows, ceil(width / 8)]` for signs; bfloat16 as the bits of its numbers.
    """
    if dtype in CALIBRATED:
        assert ranges is not None
        starts = ranges[0].astype(np.float32)
        steps = (ranges[1].astype(np.float32) - starts) / np.float32(_STEPS)
        steps = np.where(steps == 0, np.float32(1), steps)
        buckets = np.clip(np.floor((vectors - starts) / steps), 0, _STEPS)
        quantised: Numbers = buckets.astype(np.uint8) if dtype == "uint8" else (buckets - 128).astype(np.int8)
        return quantised
    if dtype in ("binary", "ubinary"):
        signs = np.packbits(vectors > 0, axis=-1)
        return signs if dtype == "ubinary" else (signs.astype(np.int16) - 128).astype(np.int8)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(vectors, "<f4").view("<u4")
        # to the nearest, of two the even one
        return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return np.ascontiguousarray(vectors, _WRITTEN[dtype])


def restored(numbers: Numbers, dtype: EmbeddingDtype) -> Numbers:
    """Return float32 for floating-point numbers that ``converted`` made, and whole numbers as they are."""
    if dtype == "bfloat16":
        return (numbers.astype("<u4") << 16).view("<f4")
    return numbers.astype(np.float32) if dtype.startswith("float") else numbers


def ranges_of(vectors: Vectors) -> Vectors:
    """Return the ranges `[2, width]` of calibration vectors `[rows, width]`."""
    return np.stack([vectors.min(axis=0), vectors.max(axis=0)])


def encode_base64(vectors: Vectors, dtype: EmbeddingDtype = "float32", ranges: Vectors | None = None) -> list[str]:
    """Return each row's little-endian numbers in base64."""
    return [base64.b64encode(row.tobytes()).decode("ascii") for row in converted(vectors, dtype, ranges)]


def decode_base64(text: str, dtype: EmbeddingDtype = "float32") -> Numbers:
    """Return the row that ``encode_base64`` wrote; raises ValueError for another string."""
    return restored(np.frombuffer(base64.b64decode(text, validate=True), dtype=_WRITTEN[dtype]), dtype)


def encode_bytes(
    vectors: Vectors, dtype: EmbeddingDtype = "float32", ranges: Vectors | None = None
) -> tuple[bytes, Mapping[str, str]]:
    """Return the little-endian numbers of all rows, and the headers that describe them.

    ``x-encoder-shape`` is that of the body, ``x-encoder-dimensions`` the width of a row before signs are packed.
    """
    rows = converted(vectors, dtype, ranges)
    return rows.tobytes(), {
        "x-encoder-shape": ",".join(map(str, rows.shape)),
        "x-encoder-dimensions": str(vectors.shape[1]),
        "x-encoder-dtype": dtype,
    }


def decode_bytes(body: bytes, headers: Mapping[str, str]) -> Numbers:
    """Return the array that ``encode_bytes`` wrote."""
    dtype: Any = headers["x-encoder-dtype"]
    shape = tuple(map(int, headers["x-encoder-shape"].split(",")))
    return restored(np.frombuffer(body, dtype=_WRITTEN[dtype]).reshape(shape), dtype)


def encoded(
    vectors: Vectors,
    encoding: Literal["float", "base64"],
    dtype: EmbeddingDtype = "float32",
    ranges: Vectors | None = None,
) -> Sequence[msgspec.Raw | str]:
    """Return each row as a value for ``msgspec.json.encode``: raw JSON, or a string."""
    if encoding == "base64":
        return encode_base64(vectors, dtype, ranges)
    return [_json(row) for row in restored(converted(vectors, dtype, ranges), dtype)]


def encoded_matrices(
    matrices: Sequence[Vectors],
    encoding: Literal["float", "base64"],
    dtype: EmbeddingDtype = "float32",
    ranges: Vectors | None = None,
) -> Sequence[msgspec.Raw | str]:
    """Return each `[rows, width]` as a value for ``msgspec.json.encode``: a list of lists as raw JSON, or one string."""
    written = [converted(matrix, dtype, ranges) for matrix in matrices]
    if encoding == "base64":
        return [base64.b64encode(matrix.tobytes()).decode("ascii") for matrix in written]
    return [_json(restored(matrix, dtype)) for matrix in written]


def _json(numbers: Numbers) -> msgspec.Raw:
    """Return numbers as JSON: of a float32 the shortest that reads back as the same."""
    # parity decodes in an image that has neither
    import msgspec
    import orjson

    return msgspec.Raw(orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY))
