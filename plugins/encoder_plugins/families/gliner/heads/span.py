"""The head of GLiNER's span models: words and labels of a packed batch in, candidate spans of each request out.

Equal to ``UniEncoderSpanModel`` of gliner 0.2.29 with ``span_mode`` markerV0: encoder, projection, first-subword rows,
LSTM over words only, span and prompt MLPs, dot product. Three parts are reordered, which does not change the result:

- Rows are gathered before the projection, which is a function of a row. A word without a row is zeros after it.
- ``out_project``'s first layer is split into halves for start and end, so it is computed per word instead of per span:
  ``W1 relu([s_i; e_j]) + b1 = (W1a relu(s_i) + b1) + W1b relu(e_j)``.
- Its second layer is folded into the labels: ``(W2 z + b2) . p = z . (p W2) + p . b2``.

For a batch of any number of requests: 1 copy to the device (all indices), 1 gather, 11 GEMMs (1 projection, 1 for the LSTM's
gates, 5 for both markers, 2 + 1 for prompts, 1 vector product), 4 ReLU, 1 launch for the LSTM, 1 for the spans, 3
copies back behind one wait for the device. A small batch is one gather, one launch and two copies (``graphs.py``). A text whose
candidates overflow, or that wants class probabilities, costs one dense pass; such texts share one more wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_kernels.span_scores import span_logits, span_scores
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.batch import Batch, Rows
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.graphs import Found, HeadGraphs
from encoder_plugins.families.gliner.heads.pooler import GlinerPooler
from encoder_plugins.families.gliner.heads.span_head import Scored, SpanHead
from encoder_plugins.families.gliner.heads.transfers import in_parts, to_host
from encoder_plugins.families.gliner.payload import COLUMNS, LOGIT

# candidates of a text that come back without a dense pass; 16 bytes each are copied for every text of a step
CAPACITY = 2048
# logits of dense passes that are on their way to the host at once: 32 MiB
DENSE_LOGITS = 1 << 23


class GlinerSpanPooler(GlinerPooler):
    """Answers each request with the candidates of ``gliner/payload.py``, float32 `[candidates, 4 + 2 * classes]`.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        capacity: Candidates of a text that come back without a dense pass.
    """

    columns: ClassVar[int] = COLUMNS
    # the span kernel's blocks of labels, each with its dense pass
    label_forms: ClassVar[tuple[int, ...]] = (1, 17, 33)

    def __init__(self, encoder_size: int, config: GlinerConfig, *, capacity: int = CAPACITY) -> None:
        super().__init__(encoder_size, config)
        self.capacity = capacity
        self.head = SpanHead(encoder_size, config)
        self.graphs: HeadGraphs | None = None

    @torch.inference_mode()
    def capture(self, device: torch.device) -> None:
        """Capture the head as CUDA graphs, after the weights are loaded."""
        self.graphs = HeadGraphs(self.head, self._encoder_size, self.config, self.capacity, device)

    def _answer(self, hidden: Tensor, batch: Batch) -> list[Rows]:
        """Return the candidates of each text that is answered."""
        found = None if self.graphs is None else self.graphs.run(hidden, batch.rows, batch.order, batch.thresholds)
        if found is None:
            found = self._launch(hidden, batch)
        answers = candidates(found.counts, found.spans, found.logits)
        texts = np.flatnonzero((found.counts > self.capacity) | (batch.classes > 0)).tolist()
        for text, logits in zip(texts, in_parts(self._dense(found.scored, batch, texts), DENSE_LOGITS), strict=True):
            answers[text] = all_candidates(
                *logits, threshold=float(batch.thresholds[text]), classes=int(batch.classes[text])
            )
        return answers

    def _dense(self, scored: Scored, batch: Batch, texts: list[int]) -> Iterator[list[Tensor]]:
        """Yield all logits of some texts, and their best classes where those are wanted, as ``all_candidates`` takes them."""
        words_group, labels_group = batch.rows.groups["words"], batch.rows.groups["labels"]
        for text in texts:
            words_of, labels_of = words_group.of(text), labels_group.of(text)
            dense = span_logits(
                scored.start[words_of],
                scored.end[words_of],
                scored.label[labels_of],
                scored.label_bias[labels_of],
                max_width=self.config.max_width,
            )
            wanted = min(int(batch.classes[text]), dense.shape[-1])
            yield [dense, *(dense.topk(wanted, dim=-1) if wanted else ())]

    def _launch(self, hidden: Tensor, batch: Batch) -> Found:
        """Return the candidates of a batch of any size, launched one operation after the other."""
        words_group, labels_group = batch.rows.groups["words"], batch.rows.groups["labels"]
        rows = DeviceRows(batch.rows, hidden.device, order=batch.order, thresholds=batch.thresholds)
        vectors = rows.split(self.head.project(rows.gather(hidden)))
        scored: Scored = self.head(vectors["words"], vectors["labels"], rows.offsets["words"], rows.extra["order"])
        found = span_scores(
            scored.start,
            scored.end,
            scored.label,
            scored.label_bias,
            rows.offsets["words"],
            rows.offsets["labels"],
            rows.extra["thresholds"],
            max_width=self.config.max_width,
            capacity=self.capacity,
            max_words=words_group.most,
            max_labels=labels_group.most,
        )
        counts, spans, logits = to_host(*found)
        return Found(counts, spans, logits, scored)


def candidates(counts: NDArray[np.int32], spans: NDArray[np.int32], logits: Rows) -> list[Rows]:
    """Return each item's rows `[candidates, 4]` from the kernel's padded ones; at most as many as were kept."""
    capacity = logits.shape[1]
    kept = np.minimum(counts, capacity)
    ends = np.cumsum(kept)
    # the padded row of each candidate
    taken = np.arange(kept.sum()) + np.repeat(np.arange(len(kept)) * capacity - (ends - kept), kept)
    rows = np.empty((len(taken), COLUMNS), np.float32)
    rows[:, :LOGIT] = spans.reshape(-1, LOGIT)[taken]
    rows[:, LOGIT] = logits.reshape(-1)[taken]
    return np.split(rows, ends[:-1])


def all_candidates(dense: Rows, *best: NDArray[Any], threshold: float, classes: int) -> Rows:
    """Return the rows of one item from all its logits.

    Args:
        dense: `[words, widths, labels]` float32.
        best: The logits and the numbers of each span's best classes, `[words, widths, wanted]`; nothing where ``classes`` is 0.
        threshold: The logit from which on a span is a candidate.
        classes: How many of a span's best classes come along, as pairs of class and logit; where there are fewer labels, the rest
            is class -1 and minus infinity.

    Returns:
        `[candidates, 4 + 2 * classes]`, by start, width and class.
    """
    count, widths, _ = dense.shape
    inside = np.arange(count)[:, None] + np.arange(widths) < count  # [words, widths]
    places = np.argwhere((dense >= threshold) & inside[:, :, None])
    start, width, _ = places.T
    rows = np.empty((len(places), COLUMNS + 2 * classes), np.float32)
    rows[:, :LOGIT], rows[:, LOGIT] = places, dense[tuple(places.T)]
    rows[:, COLUMNS::2], rows[:, COLUMNS + 1 :: 2] = -1.0, -np.inf
    if best:
        logits, numbers = (values[start, width] for values in best)  # [candidates, wanted]
        last = COLUMNS + 2 * logits.shape[1]
        rows[:, COLUMNS:last:2], rows[:, COLUMNS + 1 : last : 2] = numbers, logits
    return rows
