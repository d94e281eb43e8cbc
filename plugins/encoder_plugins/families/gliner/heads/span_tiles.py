"""The spans of many texts for any number of labels: products in tiles of bounded size, of which only candidates leave the device.

Texts with few labels are scored with those of each other, and what is not theirs is masked: that is one product for all of them. Texts with
many labels are scored only with texts that have the same ones.

The host waits for each tile, to know how many candidates it has. A group of few scores goes to the host whole, with one wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_plugins.families.gliner.heads.batch import Rows
from encoder_plugins.families.gliner.heads.transfers import nonzero, to_device, to_host
from encoder_plugins.families.gliner.payload import COLUMNS, LOGIT, MOST_CANDIDATES, TOO_MANY

Ints = NDArray[np.int32]
Found = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of spans, `[spans]` each: the text, counted in the group, the rows of the first and of the last word, and whether it is in the text."""

# labels up to which lists are put together
JOINED_LABELS = 4096
# spans whose vectors are computed at once, and scores: 64 MiB of them in float32
SPANS, SCORES = 8192, 1 << 24
# scores of a group that are chosen on the host: 1 MiB
FEW_SCORES = 1 << 18


@dataclass(frozen=True, slots=True)
class Group:
    """Texts whose spans are scored together.

    Attributes:
        texts: Their numbers.
        lists: The numbers of their lists of labels, one behind the other.
    """

    texts: Sequence[int]
    lists: Sequence[int]


def groups(lists: Sequence[int], sizes: Sequence[int], most: int = JOINED_LABELS) -> list[Group]:
    """Return which texts are scored together.

    Args:
        lists: `[texts]`: the number of each text's list of labels.
        sizes: `[lists]`: how many labels each has.
        most: Labels of the lists that are put together; a longer one is alone.
    """
    texts: dict[int, list[int]] = {}
    for text, number in enumerate(lists):
        texts.setdefault(number, []).append(text)
    found: list[Group] = []
    joined: list[int] = []
    for number in texts:
        if sizes[number] > most:
            found.append(Group(texts[number], [number]))
            continue
        if joined and sum(sizes[one] for one in joined) + sizes[number] > most:
            found.append(Group([text for one in joined for text in texts[one]], joined))
            joined = []
        joined.append(number)
    if joined:
        found.append(Group([text for one in joined for text in texts[one]], joined))
    return found


def classes(labels: Sequence[Ints], begins: Sequence[int], columns: int) -> Ints | None:
    """Return the number of the label among its text's that each column is, `[texts, columns]`, -1 for none of them.

    Args:
        labels: The labels of each text, by their numbers in its list.
        begins: `[texts]`: the column of the first label of each text's list.
        columns: How many columns there are.

    Returns:
        None where each column is the label of its number, for every text.
    """
    whole = np.arange(columns, dtype=np.int32)
    if all(np.array_equal(one, whole) for one in {id(own): own for own in labels}.values()):
        return None
    found = np.full((len(labels), columns), -1, np.int32)
    for row, (own, begin) in enumerate(zip(labels, begins, strict=True)):
        found[row, begin + own] = np.arange(len(own), dtype=np.int32)
    return found


class SpanList(Protocol):
    """The spans of a group, on the host, numbered by text."""

    def __len__(self) -> int:
        """Return how many there are."""

    def on(self, device: torch.device) -> Callable[[Tensor], Found]:
        """Return what finds spans by their numbers `[spans]`."""

    def places(self, numbers: NDArray[np.int64]) -> tuple[Ints, Ints, NDArray[np.int64]]:
        """Return the text, the first word and the further words of spans, `[spans]` each, counted in the group and in the text."""


@dataclass(frozen=True, slots=True)
class ChosenSpans:
    """Some spans of a group.

    Attributes:
        texts: `[spans]` int32, ascending: the text of each, counted in the group.
        begins: `[spans]` int32: the row of its first word among those of the batch.
        ends: `[spans]` int32: that of its last word.
        first: `[texts]` int32: the row of each text's first word.
    """

    texts: Ints
    begins: Ints
    ends: Ints
    first: Ints

    def __len__(self) -> int:
        return len(self.texts)

    def on(self, device: torch.device) -> Callable[[Tensor], Found]:
        """Return what finds spans by their numbers `[spans]`."""
        texts, begins, ends = to_device(device, self.texts, self.begins, self.ends)

        def find(numbers: Tensor) -> Found:
            return texts[numbers], begins[numbers], ends[numbers], torch.ones_like(numbers, dtype=torch.bool)

        return find

    def places(self, numbers: NDArray[np.int64]) -> tuple[Ints, Ints, NDArray[np.int64]]:
        """Return the text, the first word and the further words of spans."""
        text, begin = self.texts[numbers], self.begins[numbers]
        return text, begin - self.first[text], (self.ends[numbers] - begin).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of a group, on the host: every word of its texts with every width, also beyond the last word.

    Attributes:
        words: `[words]` int32: the row of each word among those of the batch.
        texts: `[words]` int32: the text of each word, counted in the group.
        ends: `[texts]` int32: the row behind each text's last word.
        first: `[texts]` int32: the row of each text's first word.
        max_width: Words in the longest span.
    """

    words: Ints
    texts: Ints
    ends: Ints
    first: Ints
    max_width: int

    @classmethod
    def of(cls, texts: Sequence[int], offsets: Ints, max_width: int) -> Spans:
        """Return the spans of some of the texts of a batch, whose words begin at ``offsets`` `[texts + 1]`."""
        first, ends = offsets[:-1][list(texts)], offsets[1:][list(texts)]
        counts = ends - first
        words = [np.arange(begin, end, dtype=np.int32) for begin, end in zip(first, ends, strict=True)]
        return cls(
            np.concatenate(words), np.repeat(np.arange(len(texts), dtype=np.int32), counts), ends, first, max_width
        )

    def __len__(self) -> int:
        return len(self.words) * self.max_width

    def on(self, device: torch.device) -> Callable[[Tensor], Found]:
        """Return what finds spans by their numbers `[spans]`."""
        words, texts, ends = to_device(device, self.words, self.texts, self.ends)

        def find(numbers: Tensor) -> Found:
            word, width = numbers // self.max_width, numbers % self.max_width
            text, begin = texts[word], words[word]
            last, end = begin + width, ends[text]
            return text, begin, torch.minimum(last, end - 1), last < end

        return find

    def places(self, numbers: NDArray[np.int64]) -> tuple[Ints, Ints, NDArray[np.int64]]:
        """Return the text, the first word and the further words of spans."""
        word, width = np.divmod(numbers, self.max_width)
        text = self.texts[word]
        return text, self.words[word] - self.first[text], width


def candidates(
    spans: SpanList,
    vectors: Callable[[Tensor, Tensor], Tensor],
    labels: Tensor,
    thresholds: NDArray[np.float32],
    own: Ints | None,
    *,
    most: int = MOST_CANDIDATES,
    sizes: tuple[int, int] = (SPANS, SCORES),
) -> list[Rows]:
    """Return the candidates of each text of a group, as ``payload`` has them, `[candidates, 4]`, by span and class.

    A text with more than ``most`` of them has one row of the class ``TOO_MANY`` instead, with their number as logit.

    Args:
        spans: The spans.
        vectors: Returns `[spans, size]` for the rows of their first and of their last words.
        labels: `[columns, size]`: what vectors are multiplied by.
        thresholds: `[texts]`: the logit from which on a span is a candidate.
        own: `[texts, columns]`, as ``classes`` returns it.
        most: Candidates of one text.
        sizes: Spans, and scores, that are computed at once.
    """
    device = labels.device
    find, (bounds,) = spans.on(device), to_device(device, thresholds)
    mask = None if own is None else to_device(device, own >= 0)[0]
    few = len(spans) <= sizes[0] and len(spans) * len(labels) <= min(FEW_SCORES, sizes[1])
    kept = _Kept(len(thresholds), most, device)
    for part in _parts(len(spans), sizes[0]):
        numbers = torch.arange(part.start, part.stop, device=device)
        text, begin, last, within = find(numbers)
        reached = torch.where(within, bounds[text], torch.inf)
        rows = vectors(begin, last)
        for columns in _parts(len(labels), max(1, sizes[1] // len(rows))):
            scores = products(rows, labels[columns])
            wanted = scores >= reached[:, None]
            if mask is not None:
                wanted &= mask[:, columns][text]
            if few:
                found = _chosen(torch.where(wanted, scores, torch.nan))
                counts = np.bincount(spans.places(found.spans)[0], minlength=len(thresholds))
                return _tables(spans, own, [found], counts, most)
            span, column = nonzero(wanted)
            if len(span):
                kept.add(text, span, numbers, column + columns.start, scores[span, column])
    return _tables(spans, own, *kept.on_host(), most)


class _Kept:
    """The candidates of all tiles, on the device until they are many: of a text with too many, no more are kept."""

    def __init__(self, texts: int, most: int, device: torch.device) -> None:
        self._counts = torch.zeros(texts, dtype=torch.int64, device=device)
        self._most = most
        self._found = self._waiting = 0
        self._on_device: list[tuple[Tensor, Tensor, Tensor]] = []
        self._on_host: list[_Found] = []

    def add(self, texts: Tensor, spans: Tensor, numbers: Tensor, columns: Tensor, logits: Tensor) -> None:
        """Add the candidates of a tile, `[candidates]`; ``texts`` and ``numbers`` are those of the tile's ``spans``."""
        own = texts[spans]
        self._counts.index_add_(0, own, torch.ones_like(spans))
        self._found += len(spans)
        if self._found > self._most:
            # without this many no text has too many, and the device need not be waited for
            few = (self._counts <= self._most)[own]
            spans, columns, logits = spans[few], columns[few], logits[few]
        self._on_device.append((numbers[spans], columns, logits))
        self._waiting += len(spans)
        if self._waiting > self._most:
            self._copy()

    def _copy(self, *more: Tensor) -> list[NDArray[Any]]:
        """Copy what waits, and return the values of further tensors, with one wait for all of them."""
        parts = [torch.cat(part) for part in zip(*self._on_device, strict=True)]
        values = to_host(*parts, *more)
        if parts:
            self._on_host.append(_Found(*values[: len(parts)]))
        self._on_device, self._waiting = [], 0
        return values[len(parts) :]

    def on_host(self) -> tuple[list[_Found], NDArray[np.int64]]:
        """Return all candidates, and how many each text had, `[texts]`."""
        (counts,) = self._copy(self._counts)
        return self._on_host, counts


def _chosen(scores: Tensor) -> _Found:
    """Return the candidates of the only tile of a group, `[spans, columns]`; other scores are NaN."""
    (values,) = to_host(scores)
    # no other number differs from itself
    span, column = np.nonzero(values == values)
    return _Found(span, column, values[span, column])


class _Found(NamedTuple):
    """Candidates, `[candidates]` each: the number of the span, the column, and the logit."""

    spans: NDArray[np.int64]
    columns: NDArray[np.int64]
    logits: NDArray[np.float32]


def reserve(vectors: Tensor, labels: Tensor) -> None:
    """Use the memory of a tile of which every score is a candidate."""
    scores = products(vectors, labels)
    span, column = (scores >= -torch.inf).nonzero(as_tuple=True)
    del column
    scores.view(-1)[span]


def products(rows: Tensor, labels: Tensor) -> Tensor:
    """Return `[spans, columns]` in float32."""
    if rows.is_cuda and rows.dtype != torch.float32:
        return torch.mm(rows, labels.T, out_dtype=torch.float32)
    return (rows @ labels.T).float()


def _tables(
    spans: SpanList, own: Ints | None, found: Sequence[_Found], counts: NDArray[np.int64], most: int
) -> list[Rows]:
    """Return each text's rows, by what was found in its tiles."""
    nothing = _Found(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
    numbers, columns, logits = (np.concatenate(part) for part in zip(nothing, *found, strict=True))
    text, word, width = spans.places(numbers)
    label = columns if own is None else own[text, columns]
    table = np.empty((len(numbers), COLUMNS), np.float32)
    table[:, :LOGIT] = np.stack([word, width, label], axis=1)
    table[:, LOGIT] = logits
    order = np.lexsort((label, numbers))
    tables = np.split(table[order], np.searchsorted(text[order], np.arange(1, len(counts))))
    for row in np.flatnonzero(counts > most).tolist():
        tables[row] = np.array([[0, 0, TOO_MANY, counts[row]]], np.float32)
    return tables


def _parts(count: int, size: int) -> Iterator[slice]:
    for begin in range(0, count, size):
        yield slice(begin, min(begin + size, count))
