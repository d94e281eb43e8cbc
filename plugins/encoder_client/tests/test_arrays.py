"""Answers that are the bytes of an array."""

from __future__ import annotations

import numpy as np
import pytest

from encoder_client.arrays import array_of, rows_of
from encoder_client.errors import InvalidAnswerError
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import EmbeddingDtype

NUMBERS = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"])
def test_every_dtype_is_decoded_as_the_server_wrote_it(dtype: EmbeddingDtype) -> None:
    ranges = encodings.ranges_of(NUMBERS)
    body, headers = encodings.encode_bytes(NUMBERS, dtype, ranges)
    found = array_of(bytearray(body), headers)
    np.testing.assert_array_equal(found, encodings.decode_bytes(body, headers))
    wanted = {"float32": "f4", "float16": "f2", "bfloat16": "f4", "int8": "i1", "uint8": "u1", "binary": "i1"}
    assert found.dtype == np.dtype(wanted.get(dtype, "u1"))


def test_an_array_is_a_writable_view_of_the_body() -> None:
    body, headers = encodings.encode_bytes(NUMBERS)
    content = bytearray(body)
    found = array_of(content, headers)
    rows = rows_of(content, {**headers, "x-encoder-rows": "1,0,5"})
    assert [each.shape for each in rows] == [(1, 16), (0, 16), (5, 16)]
    assert all(np.shares_memory(found, each) for each in (rows[0], rows[2]))
    found[0, 0] = 7
    assert np.frombuffer(content, "<f4")[0] == rows[0][0, 0] == 7


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-encoder-dtype": "float32"},
        {"x-encoder-dtype": "float32", "x-encoder-shape": "2,2"},
        {"x-encoder-dtype": "float32", "x-encoder-shape": "one"},
        {"x-encoder-dtype": "float64", "x-encoder-shape": "1,1"},
    ],
)
def test_another_body_is_no_array(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidAnswerError):
        array_of(bytearray(4), headers)


@pytest.mark.parametrize("rows", ["1", "1,x", "3,-1", ""])
def test_rows_have_to_add_up(rows: str) -> None:
    headers = {"x-encoder-dtype": "float32", "x-encoder-shape": "2,1", "x-encoder-rows": rows}
    with pytest.raises(InvalidAnswerError, match="Rows"):
        rows_of(bytearray(8), headers)
