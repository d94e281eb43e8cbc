"""Arrays in responses, and back."""

import json
from typing import Literal

import msgspec
import numpy as np
import pytest

from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import Vectors

ROWS: Vectors = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32) * 3


def test_numbers_read_back_exactly_and_are_short() -> None:
    # not contiguous: cut to fewer dimensions
    written = msgspec.json.encode(encodings.json_numbers(ROWS[:, :3]))
    np.testing.assert_array_equal(np.array(json.loads(written), np.float32), ROWS[:, :3])
    assert msgspec.json.encode(encodings.json_numbers(np.array([[0.1]], np.float32))) == b"[[0.1]]"


def test_base64_holds_little_endian_numbers() -> None:
    assert encodings.encode_base64(np.array([[1.0]], np.float32)) == ["AACAPw=="]
    assert encodings.encode_base64(np.array([[1.0]], np.float32), "float16") == ["ADw="]
    for row, text in zip(ROWS, encodings.encode_base64(ROWS), strict=True):
        np.testing.assert_array_equal(encodings.decode_base64(text), row)
    with pytest.raises(ValueError, match="base64"):
        encodings.decode_base64("AAC\nAPw==")


def test_a_response_has_the_encoding_that_was_requested() -> None:
    assert encodings.encoded(ROWS, "base64", "float16") == encodings.encode_base64(ROWS, "float16")
    assert encodings.encoded(ROWS, "float", "float16") == encodings.json_numbers(ROWS)


def test_a_matrix_of_each_text_has_the_encoding_that_was_requested() -> None:
    # not contiguous, and of different lengths
    matrices = [ROWS[:, :3], ROWS[:2, :3]]
    written = json.loads(msgspec.json.encode(encodings.encoded_matrices(matrices, "float", "float32")))
    for found, matrix in zip(written, matrices, strict=True):
        np.testing.assert_array_equal(np.array(found, np.float32), matrix)
    texts = encodings.encoded_matrices(matrices, "base64", "float16")
    for text, matrix in zip(texts, matrices, strict=True):
        assert isinstance(text, str)
        numbers = encodings.decode_base64(text, "float16").reshape(matrix.shape)
        np.testing.assert_array_equal(numbers, matrix.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_binary_body_is_described_by_its_headers(dtype: Literal["float32", "float16"]) -> None:
    body, headers = encodings.encode_bytes(ROWS[:, :3], dtype)
    assert headers == {"x-encoder-shape": "5,3", "x-encoder-dtype": dtype}
    assert len(body) == 5 * 3 * np.dtype(dtype).itemsize
    expected = ROWS[:, :3].astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(encodings.decode_bytes(body, headers), expected)
