"""The same as ``answers`` for token-level models: scored words to candidates, and readings with groups of labels to one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.families.gliner import answers, chunks, decode, decode_words, payload
from encoder_plugins.families.gliner.answers import Candidates, PreparedText, Table
from encoder_plugins.families.gliner.request import EntityRequest

Reading = tuple[PreparedText, Candidates, NDArray[np.int64]]
"""A text with a group of labels, what was found, and which of it are entities."""


def candidates(text: PreparedText, tables: Sequence[Table], data: EntityRequest, *, most: int) -> Candidates:
    """Return the candidates of a text, counted in its words, in the order in which the library enumerates them.

    Args:
        text: The text.
        tables: The scored words of its chunks.
        data: The request.
        most: How many candidates there may be.

    Raises:
        TooManySpans: There are more.
    """
    found: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
    count = 0
    for number, table in enumerate(tables):
        if not table.rows.size:
            continue
        word, label = table.rows[:, : payload.TOKEN_LOGITS].astype(np.int64).T
        spans = decode_words.spans(
            word + text.chunks[number].begin,
            label,
            table.scores,
            # the library also finds entities in words that its tokenizer cut off, which it scores as rows of zeros
            words=len(text.words) if text.words_kept is None else text.words_kept,
            threshold=data.threshold,
            most=most - count,
            allowed=text.allowed,
        )
        count += len(spans.start)
        kept = np.ones(len(spans.start), bool)
        if len(text.chunks) > 1:
            kept = chunks.owned(text.chunks, number, spans.start, spans.end)
        columns = np.stack([spans.start, spans.end - spans.start, spans.label], axis=1)
        found.append((columns[kept], spans.score[kept]))
    spans_found = np.concatenate([columns for columns, _ in found] or [np.zeros((0, payload.LOGIT), np.int64)])
    scores = np.concatenate([score for _, score in found] or [np.zeros(0, np.float32)])
    if len(found) > 1:
        order = np.lexsort(
            (spans_found[:, payload.WIDTH], spans_found[:, payload.CLASS], spans_found[:, payload.START])
        )
        spans_found, scores = spans_found[order], scores[order]
    return Candidates(spans_found, scores, np.zeros((len(scores), 0), np.float32))


def proposed(text: PreparedText, tables: Sequence[Table], data: EntityRequest) -> Candidates:
    """Return the candidates of a text whose words propose spans, in the order in which the library enumerates them.

    Args:
        text: The text.
        tables: The spans of its chunks with their scores.
        data: The request.
    """
    found = answers.candidates(text, tables)
    start, further, _ = found.spans.T
    # as the library compares numbers, and with the words that it reads
    words = len(text.words) if text.words_kept is None else text.words_kept
    kept = (found.score.astype(np.float64) > data.threshold) & (start + further < words)
    if text.allowed is not None:
        own = zip(start.tolist(), (start + further).tolist(), strict=True)
        kept &= np.fromiter((span in text.allowed for span in own), bool, len(kept))
    return Candidates(found.spans[kept], found.score[kept], found.best[kept])


def chosen(text: PreparedText, found: Candidates, data: EntityRequest) -> NDArray[np.int64]:
    """Return which candidates are the entities, in order."""
    start, further, _ = found.spans.T
    return decode.search(
        start, start + further, found.score, words=len(text.words), flat=data.flat_ner, several=data.multi_label
    )


def kept_by_all(readings: Sequence[PreparedText]) -> Sequence[PreparedText]:
    """Return the readings of a text with groups of its labels; where words were cut off, each keeps the words that all of them do.

    A group with more tokens leaves fewer words. No entity of another group is behind them.
    """
    kept = [text.words_kept for text in readings if text.words_kept is not None]
    if not kept or min(kept) == max(kept):
        return readings
    return [replace(text, words_kept=min(kept)) for text in readings]


def merged(readings: Sequence[Reading], data: EntityRequest) -> Reading:
    """Return one reading of a text from those with groups of its labels.

    The entities of all groups compete by the rules that those of one group did: of equal spans the better one stays, of equal scores that
    of the first group; and what overlaps a better one is dropped, which the library's users have to do themselves.
    """
    before = np.cumsum([0, *(len(text.labels) for text, _, _ in readings)]).tolist()
    spans = np.concatenate([found.spans[rows] for _, found, rows in readings])
    spans[:, payload.CLASS] += np.repeat(before[:-1], [rows.size for _, _, rows in readings])
    scores = np.concatenate([found.score[rows] for _, found, rows in readings])
    first = readings[0][0]
    text = replace(
        first,
        labels=tuple(label for text, _, _ in readings for label in text.labels),
        chunks=max((text.chunks for text, _, _ in readings), key=len),
    )
    found = Candidates(spans, scores, np.zeros((len(scores), 0), np.float32))
    return text, found, chosen(text, found, data)
