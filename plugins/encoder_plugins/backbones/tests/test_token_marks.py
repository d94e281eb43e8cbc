"""Marks to bytes, to numbers of tokens, and to the texts of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from encoder_plugins.backbones import token_marks
from encoder_plugins.backbones.token_marks import KEY, TokenMarks


def marks(tokens: list[int], keys: list[int] | None = None, encoder: int = 0) -> TokenMarks:
    found = token_marks.decode(token_marks.encode(tokens, keys=keys, encoder=encoder))
    assert found is not None
    return found


BATCH: list[tuple[int, TokenMarks | None]] = [
    (5, None),
    (9, marks([4, 2, 3])),
    (32, marks([32], [11], encoder=1)),
    (1, None),
    (7, marks([6, 1], [3, 1])),
]
OFFSETS = [0, 5, 9, 11, 14, 46, 47, 53, 54]
KEYS = [5, 4, 2, 3, 11, 1, 3, 1]


def test_marks_survive_the_wire() -> None:
    found = marks([4, 2, 3], [4, 1, 3], encoder=7)
    assert (found.tokens.tolist(), found.keys.tolist(), found.encoder, found.total) == ([4, 2, 3], [4, 1, 3], 7, 9)
    assert marks([4, 2]).keys.tolist() == [4, 2]


@pytest.mark.parametrize(
    ("tokens", "keys", "encoder"),
    [([], None, 0), ([0], None, 0), ([3], [0], 0), ([3], [4], 0), ([3, 3], [3], 0), ([3], None, -1), ([3], None, 256)],
)
def test_impossible_marks_are_not_encoded(tokens: list[int], keys: list[int] | None, encoder: int) -> None:
    with pytest.raises(ValueError, match="expected texts of at least 1 token"):
        token_marks.encode(tokens, keys=keys, encoder=encoder)


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {KEY: None},
        {KEY: "text"},
        {KEY: b""},
        {KEY: b"123"},
        {KEY: np.asarray([0], "<i4").tobytes()},
        {KEY: np.asarray([0, 3], "<i4").tobytes()},
        {KEY: np.asarray([0, 3, 4], "<i4").tobytes()},
        {KEY: np.asarray([0, 3, 0], "<i4").tobytes()},
        {KEY: np.asarray([-1, 3, 3], "<i4").tobytes()},
    ],
    ids=str,
)
def test_what_is_no_mark_is_none(parameters: dict[str, Any] | None) -> None:
    assert token_marks.decode(parameters) is None


def test_marks_of_another_number_of_tokens_do_not_count() -> None:
    wire = token_marks.encode([4, 2])
    assert token_marks.decode(wire, 6) is not None
    assert token_marks.decode(wire, 7) is None


@pytest.mark.parametrize("way", ["from requests", "from tokens"])
def test_both_runners_find_the_same_texts(way: str) -> None:
    if way == "from requests":
        found = token_marks.of_batch(BATCH)
    else:
        numbers = [
            np.zeros(count, np.int32) if marked is None else token_marks.per_token(marked) for count, marked in BATCH
        ]
        starts = np.cumsum([0, *(count for count, _ in BATCH[:-1])], dtype=np.int32)
        found = token_marks.from_tokens(np.concatenate(numbers), starts)
    assert found.offsets.tolist() == OFFSETS
    assert found.keys is not None
    assert found.keys.tolist() == KEYS
    assert found.encoders.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert found.longest == 32
    assert found.positions[:11].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1]
    assert found.offsets.dtype == found.keys.dtype == found.encoders.dtype == found.positions.dtype == np.int32


def test_without_queries_only_there_are_no_key_lengths() -> None:
    assert token_marks.of_batch(BATCH[:2]).keys is None
    assert token_marks.from_tokens(token_marks.per_token(marks([2, 3])), np.zeros(1, np.int32)).keys is None
