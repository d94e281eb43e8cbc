"""The span head as CUDA graphs of some sizes: a step of few texts takes longer to launch operation by operation than to compute.

A graph reads which rows, texts and thresholds there are from one buffer, which a batch fills from its beginning: texts that a batch
does not have are empty ones, and rows that it does not have belong to no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_kernels.span_scores import span_scores
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.row_groups import RowPlan
from encoder_plugins.families.gliner.heads.span_head import Scored, SpanHead
from encoder_plugins.families.gliner.heads.transfers import HostCopies

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Size:
    """What a graph has room for.

    Attributes:
        texts: Texts of a batch.
        words: Words of all its texts.
        labels: Labels of all its texts.
        most: Labels of the text that has most.
    """

    texts: int
    words: int
    labels: int
    most: int

    def holds(self, rows: RowPlan) -> bool:
        """Return whether a batch fits."""
        words, labels = rows.groups["words"], rows.groups["labels"]
        return (
            len(rows.texts) <= self.texts
            and words.total <= self.words
            and labels.total <= self.labels
            and labels.most <= self.most
        )


# larger batches keep a GPU busy for longer than a host needs to launch them
SIZES = tuple(
    Size(texts, words, labels, most)
    for texts, words, labels in ((2, 128, 64), (8, 768, 256), (16, 1536, 512), (32, 3072, 1024))
    # the widths of the span kernel's blocks of labels
    for most in (16, 32)
)


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates of a batch.

    Attributes:
        counts: `[texts]` int32: how many candidates a text has, also those that were not kept.
        spans: `[texts, capacity, 3]` int32.
        logits: `[texts, capacity]` float32.
        scored: What the scores were computed from, on the device.
    """

    counts: Ints
    spans: Ints
    logits: NDArray[np.float32]
    scored: Scored


class HeadGraphs:
    """The captured graphs of a head.

    Args:
        head: The learned layers, loaded.
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        capacity: Candidates of a text that are kept.
        device: Where the head is.
        sizes: What to capture, from the smallest to the largest.
    """

    def __init__(
        self,
        head: SpanHead,
        encoder_size: int,
        config: GlinerConfig,
        capacity: int,
        device: torch.device,
        sizes: tuple[Size, ...] = SIZES,
    ) -> None:
        pool = torch.cuda.graph_pool_handle()
        largest_first = [_Graph(head, encoder_size, config, capacity, size, device, pool) for size in reversed(sizes)]
        self._graphs = largest_first[::-1]

    def run(self, hidden: Tensor, rows: RowPlan, order: Ints, thresholds: NDArray[np.float32]) -> Found | None:
        """Return the candidates of a batch; None where no graph is large enough. The results are valid until the next call.

        Args:
            hidden: `[tokens, encoder_size]`.
            rows: The words and labels of the batch's texts.
            order: `[texts]` int32: the texts, those with most words first.
            thresholds: `[texts]` float32: the logit from which on a span is a candidate.
        """
        for graph in self._graphs:
            if graph.size.holds(rows):
                return graph.run(hidden, rows, order, thresholds)
        return None


class _Graph:
    def __init__(
        self,
        head: SpanHead,
        encoder_size: int,
        config: GlinerConfig,
        capacity: int,
        size: Size,
        device: torch.device,
        pool: Any,
    ) -> None:
        self.size = size
        texts, rows = size.texts, size.words + size.labels
        # one copy to the device, and one back
        self._parts = {
            "rows": rows,
            "present": size.words,
            "words": texts + 1,
            "labels": texts + 1,
            "order": texts,
            "thresholds": texts,
        }
        sizes = list(self._parts.values())
        self._host, self._input = _pair(sum(sizes), device)
        # what follows the counts is aligned as a tensor of its own would be, so that it is the same compiled kernel
        counts = -(-texts // 4) * 4
        self._shapes = [counts, texts * capacity * 3, texts * capacity]
        self._result_host, self._result = _pair(sum(self._shapes), device)
        self._host_parts = dict(zip(self._parts, torch.split(self._host, sizes), strict=True))
        self._numpy = {name: part.numpy() for name, part in self._host_parts.items()}
        self._numpy["thresholds"] = self._numpy["thresholds"].view(np.float32)
        self._device_parts = dict(zip(self._parts, torch.split(self._input, sizes), strict=True))
        self._rows = torch.zeros(rows, encoder_size, dtype=head.prompt_in.weight.dtype, device=device)
        self._capacity = capacity
        # launched once as it is, so that everything is compiled
        self._launch(head, config)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._scored = self._launch(head, config)

    def _results(self, buffer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        counts, spans, logits = torch.split(buffer, self._shapes)
        texts = self.size.texts
        return (
            counts[:texts],
            spans.view(texts, self._capacity, 3),
            logits.view(torch.float32).view(texts, self._capacity),
        )

    def _launch(self, head: SpanHead, config: GlinerConfig) -> Scored:
        parts = self._device_parts
        words, labels = torch.split(head.project(self._rows), [self.size.words, self.size.labels])
        words = torch.where(parts["present"][:, None] != 0, words, 0.0)
        scored: Scored = head(words, labels, parts["words"], parts["order"])
        span_scores(
            scored.start,
            scored.end,
            scored.label,
            scored.label_bias,
            parts["words"],
            parts["labels"],
            parts["thresholds"].view(torch.float32),
            max_width=config.max_width,
            capacity=self._capacity,
            max_words=self.size.words,
            max_labels=self.size.most,
            out=self._results(self._result),
        )
        return scored

    def run(self, hidden: Tensor, rows: RowPlan, order: Ints, thresholds: NDArray[np.float32]) -> Found:
        self._fill(rows, order, thresholds)
        self._input.copy_(self._host, non_blocking=True)
        torch.index_select(hidden, 0, self._device_parts["rows"], out=self._rows)
        self._graph.replay()
        HostCopies(self._result, into=[self._result_host]).wait()
        counts, spans, logits = (part.numpy()[: len(rows.texts)] for part in self._results(self._result_host))
        return Found(counts, spans, logits, self._scored)

    def _fill(self, rows: RowPlan, order: Ints, thresholds: NDArray[np.float32]) -> None:
        filled, texts = self._numpy, len(rows.texts)
        words, labels = rows.groups["words"], rows.groups["labels"]
        # what an earlier batch left may be no rows of this one
        filled["rows"].fill(0)
        filled["rows"][: words.total] = rows.rows[words.first : words.first + words.total]
        begin = self.size.words
        filled["rows"][begin : begin + labels.total] = rows.rows[labels.first : labels.first + labels.total]
        filled["present"].fill(1)
        filled["present"][words.missing] = 0
        for name, group in rows.groups.items():
            filled[name][: texts + 1] = group.offsets
            filled[name][texts + 1 :] = group.total
        filled["order"][:texts] = order
        filled["order"][texts:] = np.arange(texts, self.size.texts)
        filled["thresholds"][:texts] = thresholds


def _pair(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return zeros on the host, from where the device copies without waiting, and on the device."""
    return torch.zeros(count, dtype=torch.int32, pin_memory=True), torch.zeros(count, dtype=torch.int32, device=device)
