"""What the pooler found in a text to entities: the candidates, those of them that are entities, and their form in the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from encoder_plugins.families.gliner import chunks, decode, payload
from encoder_plugins.families.gliner.chunks import Chunk
from encoder_plugins.families.gliner.probabilities import probabilities
from encoder_plugins.families.gliner.request import Entity, EntityRequest, Result, wants_class_probs
from encoder_plugins.families.gliner.words import Split


@dataclass(frozen=True, slots=True)
class PreparedText:
    """How one text is read.

    Attributes:
        text: As it was sent.
        words: Those that the model gets.
        labels: Different from each other.
        allowed: The only (first word, last word) that can be entities; None for all.
        chunks: The parts of it, one prompt each; none where there is nothing to find.
        words_kept: The number of words that were not cut off; None unless the client chose to have them cut off.
        words_sent: The number of words of the text.
        split: All words of the text, and where they are.
    """

    text: str
    words: Sequence[str]
    labels: tuple[str, ...]
    allowed: frozenset[tuple[int, int]] | None
    chunks: Sequence[Chunk]
    words_kept: int | None
    words_sent: int
    split: Split


@dataclass(frozen=True, slots=True)
class Table:
    """What the pooler found in one part of a text, counted in the part's own words.

    Attributes:
        rows: `[rows, columns]` float32: candidates, or scored words, as the pooler gives them.
        scores: `[rows, logits]` float32: the probabilities of those columns that are logits.
    """

    rows: NDArray[np.float32]
    scores: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the pooler found in a text.

    Attributes:
        spans: `[candidates, 3]`: first word, further words, and label.
        score: `[candidates]`: the probability.
        best: `[candidates, 2 * classes]` float32: labels and logits in pairs.
    """

    spans: NDArray[np.int64]
    score: NDArray[np.float32]
    best: NDArray[np.float32]


def tables_of(pooled: torch.Tensor, words: Sequence[int], logits: slice) -> Iterator[Table]:
    """Yield the table of each part of a prompt.

    All that can be is done for the whole prompt at once: a part has so few rows that operations on its own ones take longer to begin
    than to do, and each is a moment at which threads wait for each other.

    Args:
        pooled: `[rows, columns]`: what the pooler found in the prompt, counted in the words of all parts.
        words: The number of words of each part.
        logits: Which columns are logits.
    """
    rows = pooled.float().numpy()
    if not len(rows):
        empty = rows.reshape(0, 0)
        yield from [Table(empty, empty)] * len(words)
        return
    if len(words) == 1:
        yield Table(rows, probabilities(torch.from_numpy(rows)[:, logits]).numpy())
        return
    ends = np.cumsum(words)
    part_of = np.searchsorted(ends, rows[:, payload.START], side="right")
    rows = rows[np.argsort(part_of, kind="stable")]
    counts = np.bincount(part_of, minlength=len(words))
    # rows is a copy that nothing else uses
    rows[:, payload.START] -= np.repeat(ends - words, counts)
    scores = probabilities(torch.from_numpy(rows)[:, logits]).numpy()
    for begin, end in pairwise([0, *np.cumsum(counts).tolist()]):
        yield Table(rows[begin:end], scores[begin:end])


def candidates(text: PreparedText, tables: Sequence[Table]) -> Candidates:
    """Return the candidates of a text, counted in its words, from what was found in its chunks."""
    parts = []
    for number, table in enumerate(tables):
        if not table.rows.size:
            continue
        spans, score, best = _columns(table)
        if len(text.chunks) > 1:
            spans[:, payload.START] += text.chunks[number].begin
            start, further, _ = spans.T
            kept = chunks.owned(text.chunks, number, start, start + further)
            spans, score, best = spans[kept], score[kept], best[kept]
        parts.append((spans, score, best))
    if len(parts) == 1:
        return Candidates(*parts[0])
    if not parts:
        return Candidates(np.zeros((0, payload.LOGIT), np.int64), np.zeros(0, np.float32), np.zeros((0, 0), np.float32))
    spans, score, best = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Candidates(spans, score, best)


def _columns(table: Table) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    rows = table.rows
    return rows[:, : payload.LOGIT].astype(np.int64), table.scores[:, 0], rows[:, payload.COLUMNS :]


def candidate_count(table: Table) -> int:
    """Return how many candidates a pooler found, those among them that it did not keep."""
    rows = table.rows
    if not rows.size:
        return 0
    dropped = rows[rows[:, payload.CLASS] == payload.TOO_MANY]
    return len(rows) - len(dropped) + int(dropped[:, payload.LOGIT].sum())


def chosen(text: PreparedText, found: Candidates, data: EntityRequest) -> NDArray[np.int64]:
    """Return which candidates are the entities, in order."""
    return decode.keep(
        found.spans[:, payload.START],
        found.spans[:, payload.WIDTH],
        found.spans[:, payload.CLASS],
        found.score,
        # the library also finds entities in words that its tokenizer cut off, which it scores as rows of zeros
        words=len(text.words) if text.words_kept is None else text.words_kept,
        threshold=data.threshold,
        flat=data.flat_ner,
        multi_label=data.multi_label,
        allowed=text.allowed,
    )


def entities(text: PreparedText, found: Candidates, rows: NDArray[np.int64], data: EntityRequest) -> list[Entity]:
    """Return the entities that the candidates in ``rows`` are."""
    if not len(rows):
        return []
    begin, further, label = found.spans[rows].T.tolist()
    end = [first + more for first, more in zip(begin, further, strict=True)]
    places = text.split.runs(text.text, begin, end)
    likely = class_probabilities(text, found, rows) if wants_class_probs(data) else [None] * rows.size
    made: list[Entity] = []
    for (left, right), name, score, probs in zip(places, label, found.score[rows].tolist(), likely, strict=True):
        made.append(Entity(left, right, text.text[left:right], text.labels[name], score, probs))
    return made


def class_probabilities(
    text: PreparedText, found: Candidates, rows: NDArray[np.int64]
) -> list[dict[str, float] | None]:
    """Return the best labels of each row with their probabilities."""
    best = torch.from_numpy(found.best[rows])
    names = best[:, 0::2].long().tolist()
    scores = probabilities(best[:, 1::2]).tolist()
    return [
        dict(zip(map(text.labels.__getitem__, labels), likely, strict=True))
        for labels, likely in zip(names, scores, strict=True)
    ]


def result_of(text: PreparedText, found: list[Entity], data: EntityRequest) -> Result:
    """Return the answer for one text."""
    kept = text.words_kept
    return Result(
        entities=found,
        truncated=None if kept is None else kept < text.words_sent,
        words_kept=kept,
        chunks=len(text.chunks) if data.overflow == "chunk" else None,
        language=text.split.language,
        language_fallback=text.split.fallback,
    )
