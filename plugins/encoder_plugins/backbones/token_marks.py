"""What the encoder receives about the tokens of one engine request beside their ids: texts, keys, and which encoder reads it.

A request may hold several texts, one behind the other: each is attended to on its own, and its positions begin at 0. Of a
text's tokens only the first ones need be keys: those behind them query the keys, and nothing attends to them (the expansion
tokens of retrieval). And a model of several encoders reads a request with one of them.

The marks travel in the ``extra_kwargs`` of a request's ``PoolingParams`` as some bytes; ``mark_channel`` brings them into
the model. Numpy only: pure functions between marks, bytes, and the arrays of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# the key in extra_kwargs
KEY = "token_marks"
# bits of a token's mark; the encoder's number is in those above
TEXT_START, QUERY_ONLY = 1, 2
_ENCODER_SHIFT = 2
_MAX_ENCODER = 255
_WIRE = np.dtype("<i4")

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TokenMarks:
    """The marks of one request.

    Attributes:
        tokens: `[texts]` int32: tokens of each text, at least 1; together all tokens of the request.
        keys: `[texts]` int32: how many of each text's first tokens are keys, at least 1.
        encoder: The number of the encoder that reads the request; 0 in a model that has only one.
    """

    tokens: Ints
    keys: Ints
    encoder: int = 0

    @property
    def total(self) -> int:
        """Tokens of the request."""
        return int(self.tokens.sum())


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a batch, whichever requests they came by.

    Attributes:
        offsets: `[texts + 1]` int32: the first token of each text in the batch, and the end of the last.
        keys: `[texts]` int32: how many of each text's first tokens are keys; None where all of them are.
        encoders: `[texts]` int32: the number of the encoder that reads each text.
    """

    offsets: Ints
    keys: Ints | None
    encoders: Ints

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return int(np.diff(self.offsets).max(initial=0))

    @property
    def positions(self) -> Ints:
        """`[tokens]` int32: each token's position in its text."""
        counts = np.diff(self.offsets)
        positions: Ints = np.arange(self.offsets[-1], dtype=np.int32) - np.repeat(self.offsets[:-1], counts)
        return positions


def encode(tokens: Sequence[int], *, keys: Sequence[int] | None = None, encoder: int = 0) -> dict[str, bytes]:
    """Return what to add to a prompt's parameters.

    Args:
        tokens: Tokens of each text of the prompt; together all of its tokens.
        keys: How many of each text's first tokens are keys; None for all.
        encoder: The number of the encoder that reads the prompt.

    Raises:
        ValueError: There is no text, an empty one, or one without a key, or the encoder's number is out of range.
    """
    marks = _checked(tokens, tokens if keys is None else keys, encoder)
    if marks is None:
        raise ValueError(
            f"expected texts of at least 1 token with 1 key to all keys, and an encoder from 0 to {_MAX_ENCODER}; "
            f"got tokens={list(tokens)}, keys={keys}, encoder={encoder}"
        )
    return {KEY: np.concatenate([[encoder], marks.tokens, marks.keys]).astype(_WIRE).tobytes()}


def decode(parameters: Mapping[str, Any] | None, tokens: int | None = None) -> TokenMarks | None:
    """Return the marks of a request; None where it has none, or none that fit it. Never raises.

    Args:
        parameters: The request's ``extra_kwargs``.
        tokens: The request's tokens; None leaves out the check of their number.
    """
    wire = (parameters or {}).get(KEY)
    if not isinstance(wire, bytes) or len(wire) % (2 * _WIRE.itemsize) != _WIRE.itemsize:
        return None
    values = np.frombuffer(wire, _WIRE).astype(np.int32)
    texts = len(values) // 2
    marks = _checked(values[1 : texts + 1], values[texts + 1 :], int(values[0]))
    return marks if marks is not None and tokens in (None, marks.total) else None


def _checked(tokens: Sequence[int] | Ints, keys: Sequence[int] | Ints, encoder: int) -> TokenMarks | None:
    each, seen = np.asarray(tokens, np.int32), np.asarray(keys, np.int32)
    fine = len(each) and len(each) == len(seen) and (seen >= 1).all() and (seen <= each).all()
    return TokenMarks(each, seen, encoder) if fine and 0 <= encoder <= _MAX_ENCODER else None


def per_token(marks: TokenMarks) -> Ints:
    """Return one number for each token of a request, `[tokens]` int32."""
    offsets = np.zeros(len(marks.tokens) + 1, np.int64)
    np.cumsum(marks.tokens, out=offsets[1:])
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], marks.tokens)
    found = np.full(int(offsets[-1]), marks.encoder << _ENCODER_SHIFT, np.int32)
    found[positions >= np.repeat(marks.keys, marks.tokens)] |= QUERY_ONLY
    found[offsets[:-1]] |= TEXT_START
    return found


def from_tokens(numbers: Ints, request_starts: Ints) -> Texts:
    """Return the texts of a batch from the numbers of its tokens.

    Args:
        numbers: `[tokens]` int32: what ``per_token`` gave for each request, 0 for the tokens of a request without marks.
        request_starts: `[requests]`: the first token of each request.
    """
    starts = np.zeros(len(numbers), bool)
    starts[request_starts] = True
    starts |= (numbers & TEXT_START) != 0
    first = np.flatnonzero(starts)
    offsets = np.append(first, len(numbers)).astype(np.int32)
    query_only = (numbers & QUERY_ONLY) != 0
    keys = np.diff(offsets) - np.add.reduceat(query_only, first, dtype=np.int32) if query_only.any() else None
    return Texts(offsets, None if keys is None else keys.astype(np.int32), numbers[first] >> _ENCODER_SHIFT)


def of_batch(requests: Iterable[tuple[int, TokenMarks | None]]) -> Texts:
    """Return the texts of a batch from its requests: the number of tokens and the marks of each."""
    tokens: list[Ints] = []
    keys: list[Ints] = []
    encoders: list[Ints] = []
    for count, marks in requests:
        each = np.asarray([count], np.int32) if marks is None else marks.tokens
        tokens.append(each)
        keys.append(each if marks is None else marks.keys)
        encoders.append(np.full(len(each), 0 if marks is None else marks.encoder, np.int32))
    counts, seen = np.concatenate(tokens), np.concatenate(keys)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return Texts(offsets, None if (seen == counts).all() else seen, np.concatenate(encoders))
