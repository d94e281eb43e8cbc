"""What crosses the process border: where words and labels are, to the pooler; candidates, from it.

Positions are packed into bytes, because vLLM copies a request's parameters deeply and bytes cost nothing there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.backbones import token_marks

# columns of a candidate; behind them come ``classes`` pairs of (class, logit), the best first
START, WIDTH, CLASS, LOGIT = range(4)
COLUMNS = 4
# the class of the only row of a text with more candidates than a pooler keeps; its logit is their number
TOO_MANY = -1
# candidates of one text that a pooler keeps at most
MOST_CANDIDATES = 1 << 20
# columns of a scored word of a token-level model: the word, its class, and from here on the logits of start, end and inside
TOKEN_LOGITS, TOKEN_COLUMNS = 2, 5

_POSITION = np.dtype("<i4")
_NUMBER = np.dtype("<f4")

# what a run begins with that is no token ids but a vector, which a client got before; no token has this id
_VECTOR = np.asarray([-1], _POSITION).tobytes()
# the largest number of a vector: beyond it 16 bits hold no number at all
VECTOR_LIMIT = 65504.0
# lists of runs that are remembered, as one object each, and the bytes of the longest: requests have the same ones again and again
_REMEMBERED_LISTS, _REMEMBERED_BYTES = 8, 8 << 20
# bytes of the vectors of labels that a worker keeps: 64 000 labels of width 1024 in 16 bits
LABEL_CACHE_BYTES = 128 << 20


class RunList(tuple[bytes, ...]):
    """The token ids of a list of labels, one after the other; equal to a tuple of them.

    A list may have 100 000 labels, and come with every request: what is made of all of them is made once for each object.
    """

    @classmethod
    def of(cls, runs: Iterable[bytes]) -> RunList:
        """Return the object itself, or one of what is none yet."""
        return runs if isinstance(runs, cls) else cls(runs)

    def __hash__(self) -> int:
        """Return the tuple's own; a tuple computes it anew each time."""
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return super().__hash__()

    @functools.cached_property
    def wire(self) -> tuple[bytes, bytes]:
        """What ``extra_kwargs`` hold of them: all token ids, and the number of each label's."""
        lengths = np.fromiter(map(len, self), np.int64, len(self)) // _POSITION.itemsize
        return b"".join(self), lengths.astype(_POSITION).tobytes()

    @functools.cached_property
    def tokens(self) -> int:
        """Tokens of those that are different."""
        return sum(map(len, set(self))) // _POSITION.itemsize


@dataclass(frozen=True, slots=True)
class Item:
    """One text, as the pooler sees it.

    Attributes:
        words: `[words]` int32: the position of each word's first token; -1 for a word whose tokens were cut off, which is a
            row of zeros in the library.
        labels: `[labels]` int32: the position of each label's class token; with ``runs``, which of them is the label.
        threshold: Candidates are those with a probability above it.
        classes: How many of a candidate span's best classes come along; 0 for none.
        runs: The token ids of labels that have an encoder of their own, of all texts of the prompt: int32, little-endian; or
            what ``vector_run`` makes of a label's vector.
    """

    words: NDArray[np.int32]
    labels: NDArray[np.int32]
    threshold: float
    classes: int = 0
    runs: tuple[bytes, ...] = ()


Positions = Sequence[int] | NDArray[np.int32]


def encode(words: Positions, labels: Positions, threshold: float, classes: int = 0) -> dict[str, Any]:
    """Return the ``extra_kwargs`` of the PoolingParams of a prompt that holds one text."""
    return {
        "words": np.asarray(words, _POSITION).tobytes(),
        "labels": np.asarray(labels, _POSITION).tobytes(),
        "threshold": threshold,
        "classes": classes,
    }


def encode_texts(texts: Sequence[Item], tokens: Sequence[int]) -> dict[str, Any]:
    """Return the ``extra_kwargs`` of the PoolingParams of a prompt that holds several texts, one behind the other.

    Nothing of a text depends on its neighbours. The prompt's candidates are those of all its texts; a candidate's start counts
    the words of all texts of the prompt.

    Args:
        texts: Positions count from each text's own first token; threshold and classes are those of the first text.
        tokens: Tokens of each text.
    """
    words, labels = [text.words for text in texts], [text.labels for text in texts]
    return {
        **encode(np.concatenate(words), np.concatenate(labels), texts[0].threshold, texts[0].classes),
        "word_counts": np.asarray([len(part) for part in words], _POSITION).tobytes(),
        "label_counts": np.asarray([len(part) for part in labels], _POSITION).tobytes(),
        **token_marks.encode(tokens),
    }


def decode(extra: Mapping[str, Any] | None) -> list[Item] | None:
    """Return the texts behind ``extra_kwargs``; None where there are none, as in vLLM's own profile runs.

    Raises:
        KeyError, TypeError, ValueError: They are not what ``encode`` or ``encode_texts`` wrote.
    """
    if not extra or "words" not in extra:
        return None
    words, labels = (_split(extra, name, f"{name[:-1]}_counts") for name in ("words", "labels"))
    threshold, classes, runs = float(extra["threshold"]), int(extra["classes"]), decode_runs(extra)
    return [Item(*pair, threshold, classes, runs) for pair in zip(words, labels, strict=True)]


def encode_runs(runs: Sequence[bytes]) -> dict[str, Any]:
    """Return what a prompt whose labels have an encoder of their own has in its ``extra_kwargs`` beside the rest."""
    tokens, lengths = RunList.of(runs).wire
    return {"label_runs": tokens, "label_run_tokens": lengths}


def encode_labels(runs: Sequence[bytes]) -> dict[str, Any]:
    """Return the ``extra_kwargs`` of a prompt that is answered with the vectors of its labels."""
    return {"encode": "labels", **encode_runs(runs)}


def decode_labels(extra: Mapping[str, Any] | None) -> tuple[bytes, ...] | None:
    """Return the runs behind ``encode_labels``; None where it did not write them.

    Raises:
        KeyError, TypeError, ValueError: They do not fit together.
    """
    return decode_runs(extra) if extra and extra.get("encode") == "labels" else None


def vector_run(vector: NDArray[np.float32]) -> bytes:
    """Return what stands for the token ids of a label whose vector `[size]` is given."""
    return _VECTOR + vector.astype(_NUMBER).tobytes()


def run_vector(run: bytes) -> NDArray[np.float32] | None:
    """Return the vector `[size]` that a run holds; None for token ids."""
    return np.frombuffer(run, _NUMBER, offset=len(_VECTOR)) if run.startswith(_VECTOR) else None


def decode_runs(extra: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the runs that ``encode_runs`` wrote; none where there are none.

    Raises:
        KeyError, TypeError, ValueError: They do not fit together.
    """
    if "label_runs" not in extra:
        return ()
    tokens, lengths = extra["label_runs"], extra["label_run_tokens"]
    if isinstance(tokens, bytes) and isinstance(lengths, bytes) and len(tokens) <= _REMEMBERED_BYTES:
        return _remembered_runs(tokens, lengths)
    return _runs(tokens, lengths)


def _runs(tokens: bytes, lengths: bytes) -> RunList:
    ends = np.cumsum(np.frombuffer(lengths, _POSITION).astype(np.int64) * _POSITION.itemsize)
    if not len(ends) or ends[-1] != len(tokens) or (np.diff(ends, prepend=0) <= 0).any():
        raise ValueError(f"label_run_tokens do not add up to {len(tokens)} bytes")
    return RunList(tokens[begin:end] for begin, end in zip([0, *ends.tolist()], ends.tolist(), strict=False))


_remembered_runs = functools.lru_cache(maxsize=_REMEMBERED_LISTS)(_runs)


def _split(extra: Mapping[str, Any], name: str, counts: str) -> list[NDArray[np.int32]]:
    # the same bytes where the machine's order is the wire's; nobody writes into them
    positions = np.frombuffer(extra[name], _POSITION).astype(np.int32, copy=False)
    if counts not in extra:
        return [positions]
    ends = np.cumsum(np.frombuffer(extra[counts], _POSITION))
    if not len(ends) or ends[-1] != len(positions):
        raise ValueError(f"{counts} do not add up to {len(positions)}")
    return np.split(positions, ends[:-1])
