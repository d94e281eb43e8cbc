"""Arrays in responses: as JSON numbers, as base64, or as the bytes of a whole body, without a Python list in between."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import msgspec

Vectors = npt.NDArray[np.float32]
Dtype: TypeAlias = Literal["float32", "float16"]
Encoding: TypeAlias = Literal["float", "base64", "bytes"]

BINARY = "application/octet-stream"


def json_numbers(vectors: Vectors) -> list[msgspec.Raw]:
    """Return each row of `[rows, width]` as a JSON list of the shortest numbers that read back as the same float32."""
    # parity decodes in an image that has neither
    import msgspec
    import orjson

    rows = np.ascontiguousarray(vectors, np.float32)
    return [msgspec.Raw(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)) for row in rows]


def encode_base64(vectors: Vectors, dtype: Dtype = "float32") -> list[str]:
    """Return each row's little-endian numbers in base64."""
    return [base64.b64encode(row.tobytes()).decode("ascii") for row in _typed(vectors, dtype)]


def decode_base64(text: str, dtype: Dtype = "float32") -> Vectors:
    """Return the row that ``encode_base64`` wrote; raises ValueError for another string."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=_little(dtype)).astype(np.float32)


def encode_bytes(vectors: Vectors, dtype: Dtype = "float32") -> tuple[bytes, Mapping[str, str]]:
    """Return the little-endian numbers of all rows, and the headers that describe them."""
    rows = _typed(vectors, dtype)
    shape = ",".join(map(str, rows.shape))
    return rows.tobytes(), {"x-encoder-shape": shape, "x-encoder-dtype": dtype}


def decode_bytes(body: bytes, headers: Mapping[str, str]) -> npt.NDArray[np.float32]:
    """Return the array that ``encode_bytes`` wrote."""
    dtype: Any = headers["x-encoder-dtype"]
    shape = tuple(map(int, headers["x-encoder-shape"].split(",")))
    return np.frombuffer(body, dtype=_little(dtype)).reshape(shape).astype(np.float32)


def encoded(vectors: Vectors, encoding: Literal["float", "base64"], dtype: Dtype) -> Sequence[msgspec.Raw | str]:
    """Return each row as a value for ``msgspec.json.encode``: raw JSON, or a string."""
    return json_numbers(vectors) if encoding == "float" else encode_base64(vectors, dtype)


def encoded_matrices(
    matrices: Sequence[Vectors], encoding: Literal["float", "base64"], dtype: Dtype
) -> Sequence[msgspec.Raw | str]:
    """Return each `[rows, width]` as a value for ``msgspec.json.encode``: a list of lists as raw JSON, or one string."""
    if encoding == "base64":
        return [text for matrix in matrices for text in encode_base64(matrix.reshape(1, -1), dtype)]
    import msgspec
    import orjson

    contiguous = [np.ascontiguousarray(matrix, np.float32) for matrix in matrices]
    return [msgspec.Raw(orjson.dumps(matrix, option=orjson.OPT_SERIALIZE_NUMPY)) for matrix in contiguous]


def _typed(vectors: Vectors, dtype: Dtype) -> npt.NDArray[Any]:
    return np.ascontiguousarray(vectors, dtype=_little(dtype))


def _little(dtype: Dtype) -> np.dtype[Any]:
    return np.dtype({"float32": "<f4", "float16": "<f2"}[dtype])
