"""Spans that the scores of words propose, scored by vectors of their own: token-level models with ``represent_spans``.

Equal to ``extract_spans_from_tokens`` and ``TokenMarker`` of gliner 0.2.29. A label proposes every span from a word that is likely enough as
start to one that is as end, with all words in between likely enough as inside; likely enough is above the text's threshold. The vector of
each proposed span is then multiplied by those of all labels, whichever proposed it, and the scores of words are forgotten.

Words' scores come to the host, where spans are made of them: mostly there are fewer than words. A span is there once, however many
labels propose it; the library takes it once for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_plugins.families.gliner.decode_words import Pairs, runs
from encoder_plugins.families.gliner.heads import span_tiles
from encoder_plugins.families.gliner.heads.batch import Rows
from encoder_plugins.families.gliner.heads.layers import MarkedHead
from encoder_plugins.families.gliner.heads.span_tiles import ChosenSpans
from encoder_plugins.families.gliner.heads.transfers import to_device
from encoder_plugins.families.gliner.payload import COLUMNS, MOST_CANDIDATES, TOO_MANY

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Proposed:
    """The spans that are proposed in a batch.

    Attributes:
        begins: For each text `[spans]` int32: the row of the first word among those of the batch. In the library's order: by first
            word, by the first label that proposed the span, and by last word.
        ends: Likewise: the row of the last word.
        counts: `[texts]`: proposals of all labels. A text with more than the limit has no spans.
        words: `[texts + 1]` int32: the row of each text's first word, and the end of the last.
    """

    begins: Sequence[Ints]
    ends: Sequence[Ints]
    counts: NDArray[np.int64]
    words: Ints

    def of(self, texts: Sequence[int]) -> ChosenSpans:
        """Return the spans of some of the texts."""
        begins, ends = ([spans[text] for text in texts] for spans in (self.begins, self.ends))
        numbers = np.repeat(np.arange(len(texts), dtype=np.int32), [len(part) for part in begins])
        return ChosenSpans(numbers, np.concatenate(begins), np.concatenate(ends), self.words[list(texts)])


def propose(
    pairs: NDArray[np.int64],
    logits: Rows,
    thresholds: Sequence[float],
    *,
    words: Ints,
    labels: Ints,
    most: int = MOST_CANDIDATES,
) -> Proposed:
    """Return the spans that scored words propose.

    Args:
        pairs: `[pairs]`: ascending numbers of pairs of a word and a label, as ``token.scored`` returns them.
        logits: `[pairs, 3]`: their logits as start, end and inside.
        thresholds: `[texts]`: as the texts' requests have them.
        words: `[texts + 1]`: the row of each text's first word, and the end of the last.
        labels: `[texts]`: labels of each text.
        most: Proposals of one text.
    """
    first_label = np.cumsum(labels, dtype=np.int64) - labels
    offsets = np.concatenate(([0], np.cumsum(np.diff(words).astype(np.int64) * labels)))
    text = np.searchsorted(offsets[1:], pairs, side="right")
    word, label = np.divmod(pairs - offsets[text], labels[text])
    # as the library compares its tensors
    above = torch.sigmoid(torch.from_numpy(logits)).numpy() > np.asarray(thresholds, np.float32)[text, None]
    rows = np.flatnonzero(above[:, 2])
    at, of = words[text] + word, first_label[text] + label
    rows = rows[np.lexsort((at[rows], of[rows]))]
    text, at, of, above = text[rows], at[rows], of[rows], above[rows]
    found = Pairs.of(above[:, 0], above[:, 1], runs(at, of))
    starts = text[found.first]
    # every number up to 2^53 is exact
    counts = np.bincount(starts, found.counts, len(labels)).astype(np.int64)
    found = replace(found, counts=np.where(counts[starts] > most, 0, found.counts))
    begins: list[Ints] = []
    ends: list[Ints] = []
    for part in _parts(np.where(counts > most, 0, counts), most):
        # starts are in order of texts
        chosen = slice(*np.searchsorted(starts, [part.start, part.stop]).tolist())
        first, last = found.rows(chosen)
        order = np.lexsort((at[last], of[first], at[first]))
        first, last = first[order], last[order]
        _, once = np.unique(at[first] * words[-1].astype(np.int64) + at[last], return_index=True)
        once.sort()
        first, last = first[once], last[once]
        borders = np.searchsorted(text[first], np.arange(part.start + 1, part.stop))
        begins += np.split(at[first].astype(np.int32), borders)
        ends += np.split(at[last].astype(np.int32), borders)
    return Proposed(begins, ends, counts, words)


def _parts(counts: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Yield texts that follow each other and have at most ``most`` proposals together, `[texts]` each."""
    begin = total = 0
    for text, count in enumerate(counts.tolist()):
        if text > begin and total + count > most:
            yield slice(begin, text)
            begin, total = text, 0
        total += count
    if begin < len(counts):
        yield slice(begin, len(counts))


def candidates(
    head: MarkedHead,
    words: Tensor,
    vectors: Tensor,
    rows: Sequence[Ints],
    proposed: Proposed,
    thresholds: NDArray[np.float32],
    *,
    most: int = MOST_CANDIDATES,
) -> list[Rows]:
    """Return the candidates of each text as ``span_tiles.candidates`` does, spans in the order in which they are proposed.

    Args:
        head: The layers of spans.
        words: `[words, size]`: what spans are made of, the texts one behind the other.
        vectors: `[labels, size]`: those of labels.
        rows: For each text `[labels]` int32: the row of each of its labels among ``vectors``.
        proposed: The spans.
        thresholds: `[texts]`: the logit from which on a pair of span and label is a candidate.
        most: Proposals, and candidates, of one text: one with more has a row with their number.
    """
    tables = [np.zeros((0, COLUMNS), np.float32) for _ in rows]
    for text in np.flatnonzero(proposed.counts > most).tolist():
        tables[text] = np.array([[0, 0, TOO_MANY, proposed.counts[text]]], np.float32)
    texts = [text for text, begins in enumerate(proposed.begins) if len(begins)]
    if not texts:
        return tables
    start, end = head.shares(words)
    numbers: dict[bytes, int] = {}
    lists = [numbers.setdefault(rows[text].tobytes(), len(numbers)) for text in texts]
    different = [np.frombuffer(key, np.int32) for key in numbers]
    for group in span_tiles.groups(lists, [len(own) for own in different]):
        chosen = [texts[place] for place in group.texts]
        columns = np.concatenate([different[number] for number in group.lists])
        first_column = dict(
            zip(group.lists, np.cumsum([0, *(len(different[one]) for one in group.lists)]).tolist(), strict=False)
        )
        found = span_tiles.candidates(
            proposed.of(chosen),
            lambda first, last: head.spans(start[first], end[last]),
            vectors[to_device(vectors.device, columns.astype(np.int64))[0]],
            thresholds[chosen],
            span_tiles.classes(
                [np.arange(len(rows[text]), dtype=np.int32) for text in chosen],
                [first_column[lists[place]] for place in group.texts],
                len(columns),
            ),
            most=most,
        )
        for text, table in zip(chosen, found, strict=True):
            tables[text] = table
    return tables


def reserve(head: MarkedHead, words: Tensor) -> None:
    """Use the memory of a full tile; ``words`` are any `[words, size]`."""
    start, end = head.shares(words[:1])
    first = torch.zeros(span_tiles.SPANS, dtype=torch.int64, device=words.device)
    labels = words.new_zeros(span_tiles.SCORES // span_tiles.SPANS, words.shape[1])
    span_tiles.reserve(head.spans(start[first], end[first]), labels)
