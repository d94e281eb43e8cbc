"""Answers that are the bytes of an array, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder_client.errors import InvalidAnswerError

Array = NDArray[Any]

# how the numbers of each dtype are sent, little-endian; bfloat16 as the upper halves of float32
_SENT: Mapping[str, str] = {
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int8": "i1",
    "uint8": "u1",
    "binary": "i1",
    "ubinary": "u1",
}


def array_of(content: bytearray, headers: Mapping[str, str]) -> Array:
    """Return the array that an answer with ``"encoding": "bytes"`` holds.

    Args:
        content: The body. The array is a view of it, and is writable; only bfloat16 is copied, as numpy has no such dtype.
        headers: Those of the answer, by names in lower case: ``x-encoder-shape`` and ``x-encoder-dtype`` describe the body.

    Returns:
        `[rows, width]` of the dtype that was sent; bfloat16 as float32.

    Raises:
        InvalidAnswerError: Headers and body do not describe an array.
    """
    dtype, described = headers.get("x-encoder-dtype", ""), headers.get("x-encoder-shape")
    if dtype not in _SENT or described is None:
        raise InvalidAnswerError("the answer lacks the headers X-Encoder-Shape and X-Encoder-Dtype")
    try:
        shape = tuple(map(int, described.split(",")))
        found = np.frombuffer(content, dtype=_SENT[dtype]).reshape(shape)
    except ValueError as error:
        raise InvalidAnswerError(f"{len(content)} bytes are not an array of {described} {dtype}: {error}") from None
    if dtype == "bfloat16":
        return (found.astype("<u4") << 16).view("<f4")
    return found


def rows_of(content: bytearray, headers: Mapping[str, str]) -> list[Array]:
    """Return the rows of each text: views of the body.

    Args:
        content: As in ``array_of``.
        headers: As in ``array_of``, with ``x-encoder-rows``, the rows of each text.

    Returns:
        `[rows, width]` for each text.

    Raises:
        InvalidAnswerError: Headers and body do not describe arrays.
    """
    together = array_of(content, headers)
    try:
        counts = [int(count) for count in headers["x-encoder-rows"].split(",")]
    except (KeyError, ValueError):
        raise InvalidAnswerError("the answer lacks the header X-Encoder-Rows") from None
    ends = np.cumsum(counts)
    if min(counts) < 0 or ends[-1] != len(together):
        raise InvalidAnswerError(f"X-Encoder-Rows adds up to {ends[-1]} rows; the answer has {len(together)}")
    return np.split(together, ends[:-1])
