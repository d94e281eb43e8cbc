"""Arrays in responses, and back."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import numpy as np
import pytest

from encoder_checkpoints.answer_cache import library_answer
from encoder_plugins.inputs import encodings
from encoder_plugins.inputs.encodings import CALIBRATED, EmbeddingDtype, Vectors

ROWS: Vectors = np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32) * 3
# what the ranges were calibrated with does not reach as far as the rows
RANGES = encodings.ranges_of((ROWS[:4] / 2).astype(np.float32))
DTYPES: tuple[EmbeddingDtype, ...] = get_args(EmbeddingDtype)
# bytes of 12 numbers
BYTES = {"float32": 48, "float16": 24, "bfloat16": 24, "int8": 12, "uint8": 12, "binary": 2, "ubinary": 2}


def ranges(dtype: EmbeddingDtype) -> Vectors | None:
    return RANGES if dtype in CALIBRATED else None


def test_numbers_read_back_exactly_and_are_short() -> None:
    # not contiguous: cut to fewer dimensions
    written = msgspec.json.encode(encodings.encoded(ROWS[:, :3], "float"))
    np.testing.assert_array_equal(np.array(json.loads(written), np.float32), ROWS[:, :3])
    assert msgspec.json.encode(encodings.encoded(np.array([[0.1]], np.float32), "float")) == b"[[0.1]]"


def test_base64_holds_little_endian_numbers() -> None:
    assert encodings.encode_base64(np.array([[1.0]], np.float32)) == ["AACAPw=="]
    assert encodings.encode_base64(np.array([[1.0]], np.float32), "float16") == ["ADw="]
    assert encodings.encode_base64(np.array([[1.0]], np.float32), "bfloat16") == ["gD8="]
    with pytest.raises(ValueError, match="base64"):
        encodings.decode_base64("AAC\nAPw==")


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in ("float16", "bfloat16")])
def test_numbers_are_quantised_as_by_the_library(dtype: EmbeddingDtype) -> None:
    given = RANGES if dtype in CALIBRATED else None
    expected = library_answer(
        "sentence_transformers", "sentence_transformers.util.quantization:quantize_embeddings", ROWS, dtype, given
    )
    found = encodings.converted(ROWS, dtype, ranges(dtype))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_a_place_that_never_varied_counts_whole_numbers_from_its_value() -> None:
    constant: Vectors = np.array([[2.0, -1.0], [2.0, -1.0]], np.float32)
    rows: Vectors = np.array([[2.0, -1.0], [5.9, 1e6], [1.0, -2.0]], np.float32)
    np.testing.assert_array_equal(encodings.converted(rows, "uint8", constant), [[0, 0], [3, 255], [0, 0]])
    np.testing.assert_array_equal(
        encodings.converted(rows, "int8", constant), [[-128, -128], [-125, 127], [-128, -128]]
    )


def test_zero_has_no_positive_sign() -> None:
    rows: Vectors = np.array([[0.0, -0.0, 1e-30, -1.0, 1.0]], np.float32)
    np.testing.assert_array_equal(encodings.converted(rows, "ubinary"), [[0b00101000]])
    np.testing.assert_array_equal(encodings.converted(rows, "binary"), [[0b00101000 - 128]])


def test_bfloat16_is_rounded_as_by_torch() -> None:
    import torch

    # of each kind: halfway between two, just beside, small, large, and whole
    values = np.array([[1.00390625, 1.01171875, 1.0039063, 1e-30, 3e38, -2.0, 0.0]], np.float32)
    expected = torch.from_numpy(values).bfloat16()
    found = encodings.converted(values, "bfloat16")
    np.testing.assert_array_equal(found.view(np.int16), expected.view(torch.int16).numpy())
    np.testing.assert_array_equal(encodings.restored(found, "bfloat16"), expected.float().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_encoding_holds_the_same_numbers(dtype: EmbeddingDtype) -> None:
    body, headers = encodings.encode_bytes(ROWS, dtype, ranges(dtype))
    width = BYTES[dtype] // np.dtype(encodings._WRITTEN[dtype]).itemsize
    assert headers == {"x-encoder-shape": f"5,{width}", "x-encoder-dimensions": "12", "x-encoder-dtype": dtype}
    assert len(body) == 5 * BYTES[dtype]
    numbers = encodings.decode_bytes(body, headers)
    # whole numbers stay what they are
    assert numbers.dtype == ("float32" if "float" in dtype else encodings._WRITTEN[dtype])
    for text, row in zip(encodings.encode_base64(ROWS, dtype, ranges(dtype)), numbers, strict=True):
        np.testing.assert_array_equal(encodings.decode_base64(text, dtype), row)
    listed = json.loads(msgspec.json.encode(encodings.encoded(ROWS, "float", dtype, ranges(dtype))))
    np.testing.assert_array_equal(np.array(listed, numbers.dtype), numbers)
    (matrix,) = encodings.encoded_matrices([ROWS], "base64", dtype, ranges(dtype))
    assert isinstance(matrix, str)
    np.testing.assert_array_equal(encodings.decode_base64(matrix, dtype), numbers.ravel())
    (matrix,) = encodings.encoded_matrices([ROWS], "float", dtype, ranges(dtype))
    assert json.loads(msgspec.json.encode(matrix)) == listed


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
