"""What the pooler found in a text to entities: the candidates, those of them that are entities, and their form in the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
class Candidates:
    """What the pooler found in a text.

    Attributes:
        spans: `[candidates, 3]`: first word, further words, and label.
        score: `[candidates]`: the probability.
        best: `[candidates, 2 * classes]` float32: labels and logits in pairs.
    """

    spans: NDArray[np.int64]
    score: NDArray[np.float32]
    best: torch.Tensor


def candidates(text: PreparedText, tables: Sequence[torch.Tensor]) -> Candidates:
    """Return the candidates of a text, counted in its words; ``tables`` are those of its chunks, as the pooler gives them."""
    if len(tables) == 1 and tables[0].numel():
        return _read_table(tables[0].float())
    parts = []
    for number, table in enumerate(tables):
        if not table.numel():
            continue
        found = table.float()
        if len(text.chunks) > 1:
            found = found.clone()
            found[:, payload.START] += text.chunks[number].begin
            start, further = found[:, : payload.CLASS].numpy().astype(np.int64).T
            found = found[torch.from_numpy(chunks.owned(text.chunks, number, start, start + further))]
        parts.append(found)
    return _read_table(torch.cat(parts) if parts else torch.zeros(0, payload.COLUMNS))


def candidate_count(table: torch.Tensor) -> int:
    """Return how many candidates a pooler found, those among them that it did not keep."""
    if not table.numel():
        return 0
    dropped = table[table[:, payload.CLASS] == payload.TOO_MANY]
    return len(table) - len(dropped) + int(dropped[:, payload.LOGIT].sum())


def _read_table(table: torch.Tensor) -> Candidates:
    spans = table.numpy()[:, : payload.LOGIT].astype(np.int64)
    return Candidates(spans, probabilities(table[:, payload.LOGIT]).numpy(), table[:, payload.COLUMNS :])


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
    if not rows.size:
        return []
    begin, further, label = found.spans[rows].T.tolist()
    end = [first + more for first, more in zip(begin, further, strict=True)]
    places = text.split.places(text.text, max(end) + 1)
    likely = class_probabilities(text, found, rows) if wants_class_probs(data) else [None] * rows.size
    made: list[Entity] = []
    for first, last, name, score, probs in zip(begin, end, label, found.score[rows].tolist(), likely, strict=True):
        left, right = places[first][0], places[last][1]
        made.append(Entity(left, right, text.text[left:right], text.labels[name], score, probs))
    return made


def class_probabilities(
    text: PreparedText, found: Candidates, rows: NDArray[np.int64]
) -> list[dict[str, float] | None]:
    """Return the best labels of each row with their probabilities."""
    best = found.best[torch.from_numpy(rows)]
    names = best[:, 0::2].numpy().astype(np.int64).tolist()
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
