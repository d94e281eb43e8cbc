"""Where the rows of a packed batch are that the GLiNER head needs: index arithmetic on the host, for all requests at once.

Numpy only. An item that does not fit its request is left out, because an exception in a pooler ends the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.families.gliner.payload import Item

Ints = NDArray[np.int32]

# sigmoid on the device may round one step off the API's, which filters exactly
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Batch:
    """The items of one step that are answered, as indices into the step's token rows.

    Attributes:
        requests: `[items]` the request of each item.
        rows: `[words + labels]` int32: the token row of each word and of each label. 0 for words without one.
        missing: int32: which of the words have no row.
        order: `[items]` int32: the items, those with most words first.
        word_offsets: `[items + 1]` int32: where each item's words begin, and the end of the last.
        label_offsets: `[items + 1]` int32: where each item's labels begin, and the end of the last.
        thresholds: `[items]` float32: the logit from which on a span is a candidate.
        classes: `[items]` how many of the best classes each item wants.
    """

    requests: Ints
    rows: Ints
    missing: Ints
    order: Ints
    word_offsets: Ints
    label_offsets: Ints
    thresholds: NDArray[np.float32]
    classes: Ints

    @property
    def words(self) -> int:
        """All items' words."""
        return int(self.word_offsets[-1])

    @property
    def max_words(self) -> int:
        """Words of the item that has most."""
        return int(np.diff(self.word_offsets).max(initial=0))

    @property
    def max_labels(self) -> int:
        """Labels of the item that has most."""
        return int(np.diff(self.label_offsets).max(initial=0))


def plan(items: Sequence[Item | None], lengths: Sequence[int], *, label_shift: int) -> Batch:
    """Plan a step.

    Args:
        items: One for each request; None for a request that is not to be answered.
        lengths: Tokens of each request, packed one behind the other.
        label_shift: Added to a label's position: 1 where a label is read behind its class token.
    """
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    kept = [
        request for request, item in enumerate(items) if item is not None and fits(item, lengths[request], label_shift)
    ]
    chosen = [item for request in kept if (item := items[request]) is not None]
    words, word_offsets = _join([item.words for item in chosen])
    labels, label_offsets = _join([item.labels for item in chosen])
    counts = np.diff(word_offsets)
    begin = starts[kept].astype(np.int32)
    rows = np.where(words < 0, -1, words + np.repeat(begin, counts))
    label_rows = labels + np.repeat(begin, np.diff(label_offsets)) + label_shift
    return Batch(
        requests=np.asarray(kept, np.int32),
        rows=np.concatenate([np.maximum(rows, 0), label_rows]).astype(np.int32),
        missing=np.flatnonzero(rows < 0).astype(np.int32),
        order=np.argsort(-counts, kind="stable").astype(np.int32),
        word_offsets=word_offsets,
        label_offsets=label_offsets,
        thresholds=np.asarray([cut(item.threshold) for item in chosen], np.float32),
        classes=np.asarray([item.classes for item in chosen], np.int32),
    )


def fits(item: Item, length: int, label_shift: int) -> bool:
    """Return whether an item has words and labels, all of them within its request's tokens."""
    words, labels = item.words, item.labels
    return bool(
        len(words)
        and len(labels)
        and words.min() >= -1
        and words.max() < length
        and labels.min() >= 0
        and labels.max() + label_shift < length
    )


def cut(threshold: float) -> float:
    """Return the logit of a probability, a hair lower; infinite at the ends. Nothing is above a threshold that is no number."""
    probability = threshold - _SLACK
    if math.isnan(probability) or probability >= 1.0:
        return math.inf
    return math.log(probability / (1.0 - probability)) if probability > 0.0 else -math.inf


def _join(parts: list[Ints]) -> tuple[Ints, Ints]:
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return (np.concatenate(parts) if parts else np.zeros(0, np.int32)), offsets
