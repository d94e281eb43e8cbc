"""The head of GLiNER's span bi-encoders: words of a packed batch and token ids of labels in, candidate spans out.

Equal to ``BiEncoderSpanModel`` of gliner 0.2.29 with ``span_mode`` markerV0: the texts' encoder reads words only, the labels' own encoder gives
a vector for each label, and the vector of each span is multiplied by that of each label behind a layer of its own. The library builds an
LSTM that it never applies; there is none here.

A batch of texts with few labels is scored by one launch of the kernel of ``span.py``, which has the span's last layer folded into the labels. With
many labels that would cost four times as much as products of the spans' own vectors: ``span_tiles`` computes those, also for a text with more
candidates than the kernel keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_kernels.span_scores import span_scores
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads import span_tiles
from encoder_plugins.families.gliner.heads.batch import Batch, Rows
from encoder_plugins.families.gliner.heads.bi_pooler import GlinerBiPooler
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.label_matrices import LabelMatrices, Runs
from encoder_plugins.families.gliner.heads.label_vectors import LabelVectors
from encoder_plugins.families.gliner.heads.span import CAPACITY, GlinerSpanPooler, candidates
from encoder_plugins.families.gliner.heads.span_head import Scored, SpanHead
from encoder_plugins.families.gliner.heads.span_tiles import Spans
from encoder_plugins.families.gliner.heads.transfers import to_device, to_host
from encoder_plugins.families.gliner.payload import COLUMNS

# labels whose layer is computed at once
LABELS = 8192
# labels of a text up to which the kernel scores a batch
FEW_LABELS = 256


class GlinerBiSpanPooler(GlinerBiPooler):
    """Answers each request with the candidates of ``gliner/payload.py``, float32 `[candidates, 4]`, by text, start, width and class.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        labels: The encoder of labels.
        sizes: Spans, and scores, that are computed at once.
        capacity: Candidates of a text that the kernel keeps.
    """

    columns: ClassVar[int] = COLUMNS
    label_forms: ClassVar[tuple[int, ...]] = GlinerSpanPooler.label_forms

    def __init__(
        self,
        encoder_size: int,
        config: GlinerConfig,
        labels: LabelVectors,
        *,
        sizes: tuple[int, int] = (span_tiles.SPANS, span_tiles.SCORES),
        capacity: int = CAPACITY,
    ) -> None:
        super().__init__(encoder_size, config, labels)
        self.head = SpanHead(encoder_size, replace(config, lstm_layers=0))
        self.matrices = LabelMatrices(self._matrix)
        self._sizes = sizes
        self._capacity = capacity

    @torch.inference_mode()
    def warm_up(self, hidden: Tensor) -> None:
        """Do the same as other bi-encoders, compile the kernel, and use the memory of matrices, of the labels' layer and of a full tile."""
        super().warm_up(hidden)
        size, like, device = self.config.hidden_size, hidden[:1, :1], hidden.device
        held = like.new_empty(self.matrices.capacity // like.element_size())
        rows = like.new_zeros(LABELS, size)
        self.head.prompts(rows)
        start, end = self.head.shares(rows[:1])
        for count in self.label_forms:
            scored = self.head.folded(start, end, rows[:count])
            offsets, ends = (torch.tensor([0, one], dtype=torch.int32, device=device) for one in (1, count))
            self._kernel(scored, offsets, ends, torch.zeros(1, device=device), (1, count))
        spans, scores = self._sizes
        first = torch.zeros(spans, dtype=torch.int64, device=device)
        span_tiles.reserve(self.head.spans(start[first], end[first]), like.new_zeros(scores // spans, size))
        del held

    def _answer(self, hidden: Tensor, batch: Batch) -> list[Rows]:
        """Return the candidates of each text that is answered."""
        lists = Lists.of([item.runs for item in batch.items])
        few = all(len(item.labels) <= FEW_LABELS for item in batch.items)
        rows = DeviceRows(batch.rows, hidden.device, **(_indices(batch, lists) if few else {}))
        words = rows.split(self.head.project(rows.gather(hidden)))["words"]
        shares = self.head.shares(words)
        if not few:
            return self._by_tiles(range(len(batch.items)), batch, lists, shares)
        counts, spans, logits = to_host(*self._by_kernel(batch, lists, shares, rows))
        answers = candidates(counts, spans, logits)
        beyond = np.flatnonzero(counts > self._capacity).tolist()
        for text, table in zip(beyond, self._by_tiles(beyond, batch, lists, shares), strict=True):
            answers[text] = table
        return answers

    def _by_kernel(self, batch: Batch, lists: Lists, shares: Tensor, rows: DeviceRows) -> tuple[Tensor, Tensor, Tensor]:
        """Return counts, spans and logits of candidates, as ``span_scores`` does, of texts with few labels."""
        matrices = [self.matrices.get(runs, shares) for runs in lists.different]
        prompts = torch.cat(matrices).index_select(0, rows.extra["labels"])
        return self._kernel(
            self.head.folded(shares[0], shares[1], prompts),
            rows.offsets["words"],
            rows.extra["label_offsets"],
            rows.extra["thresholds"],
            (batch.rows.groups["words"].most, max(len(item.labels) for item in batch.items)),
        )

    def _kernel(
        self, scored: Scored, words: Tensor, labels: Tensor, thresholds: Tensor, most: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        return span_scores(
            *scored,
            words,
            labels,
            thresholds,
            max_width=self.config.max_width,
            capacity=self._capacity,
            max_words=most[0],
            max_labels=most[1],
        )

    def _by_tiles(self, texts: Sequence[int], batch: Batch, lists: Lists, shares: Tensor) -> list[Rows]:
        """Return the candidates of some of the texts, with any number of labels."""
        start, end = shares
        found: dict[int, Rows] = {}
        sizes = [len(runs) for runs in lists.different]
        for group in span_tiles.groups([lists.own[text] for text in texts], sizes):
            chosen = [texts[place] for place in group.texts]
            matrices = [self.matrices.get(lists.different[number], shares) for number in group.lists]
            begins = dict(zip(group.lists, np.cumsum([0, *map(len, matrices)]).tolist(), strict=False))
            labels = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
            tables = span_tiles.candidates(
                Spans.of(chosen, batch.rows.groups["words"].offsets, self.config.max_width),
                lambda first, last: self.head.spans(start[first], end[last]),
                labels,
                batch.thresholds[chosen],
                span_tiles.classes(
                    [batch.items[text].labels for text in chosen],
                    [begins[lists.own[text]] for text in chosen],
                    len(labels),
                ),
                sizes=self._sizes,
            )
            found.update(zip(chosen, tables, strict=True))
        return [found[text] for text in texts]

    def _accepts(self, runs: Runs) -> bool:
        return runs in self.matrices or super()._accepts(runs)

    def _matrix(self, runs: Runs, like: Tensor) -> Tensor:
        """Return what spans are multiplied by for each of a list's labels, `[labels, size]`."""
        rows = {run: row for row, run in enumerate(dict.fromkeys(runs))}
        vectors = self.labels(list(rows), like)
        prompts = torch.cat([self.head.prompts(part) for part in vectors.split(LABELS)])
        if len(rows) == len(runs):
            return prompts
        return prompts[to_device(like.device, np.array([rows[run] for run in runs]))[0]]


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists of labels of a batch.

    Attributes:
        different: The lists.
        own: `[texts]`: the number of each text's list.
    """

    different: Sequence[Runs]
    own: Sequence[int]

    @classmethod
    def of(cls, lists: Sequence[Runs]) -> Lists:
        """Return them for the list of each text; texts of one prompt have the same object, which is compared with others once."""
        numbers: dict[Runs, int] = {}
        by_identity = {id(runs): runs for runs in lists}
        found = {key: numbers.setdefault(runs, len(numbers)) for key, runs in by_identity.items()}
        return cls(list(numbers), [found[id(runs)] for runs in lists])


def _indices(batch: Batch, lists: Lists) -> dict[str, NDArray[np.int32] | NDArray[np.float32]]:
    """Return what the kernel needs on the device: the row of each text's labels among those of all lists, and where they begin."""
    begins = np.cumsum([0, *map(len, lists.different)])
    rows = [begins[number] + item.labels for number, item in zip(lists.own, batch.items, strict=True)]
    return {
        "labels": np.concatenate(rows).astype(np.int32),
        "label_offsets": np.cumsum([0, *map(len, rows)]).astype(np.int32),
        "thresholds": batch.thresholds,
    }
