"""The head of GLiNER's span models: words and labels of a packed batch in, candidate spans of each request out.

Equal to ``UniEncoderSpanModel`` of gliner 0.2.29 with ``span_mode`` markerV0: encoder, projection, first-subword rows,
LSTM over words only, span and prompt MLPs, dot product. Three things are moved, none changes the result:

- Rows are gathered before the projection, which is a function of a row. A word without a row is zeros after it.
- ``out_project``'s first layer is split into halves for start and end, so it is computed per word instead of per span:
  ``W1 relu([s_i; e_j]) + b1 = (W1a relu(s_i) + b1) + W1b relu(e_j)``.
- Its second layer is folded into the labels: ``(W2 z + b2) . p = z . (p W2) + p . b2``.

A step, for any number of requests: 1 copy to the device (all indices), 1 gather, 9 GEMMs (1 projection, 1 for the LSTM's gates,
3 for both markers together, 2 + 1 for prompts, 1 vector product), 4 ReLU, 1 launch for the LSTM, 1 for the spans, 3 copies
back behind one wait for the device. Requests whose candidates overflow, or that want class probabilities, cost
one dense pass with one more wait each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from vllm.model_executor.layers.pooler.abstract import Pooler
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_kernels.span_scores import span_logits, span_scores
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.layers import BiLSTM, StackedLinear
from encoder_plugins.families.gliner.heads.row_groups import Batch, plan
from encoder_plugins.families.gliner.payload import COLUMNS, Item, decode

Rows = NDArray[np.float32]

# candidates of a request that come back without a dense pass; 16 bytes each are copied for every request of a step
CAPACITY = 512
# what a profile run takes for a request: all of its tokens as words, and so many labels
_DUMMY_LABELS = 25


class SpanHead(nn.Module):
    """All learned layers behind the encoder."""

    def __init__(self, encoder_size: int, config: GlinerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.projection = nn.Linear(encoder_size, size) if config.projection else None
        self.lstm = nn.ModuleList(BiLSTM(size, size // 2) for _ in range(config.lstm_layers))
        self.marker_in = StackedLinear(size, 4 * size)
        self.marker_out = StackedLinear(4 * size, size)
        # the bias belongs to the start; the end's half stays zero
        self.span_in = StackedLinear(size, 4 * size)
        self.span_out = nn.Linear(4 * size, size)
        self.prompt_in = nn.Linear(size, 4 * size)
        self.prompt_out = nn.Linear(4 * size, size)

    def spans(self, words: Tensor) -> Tensor:
        """Return the start's and the end's share of a span's inner layer, `[2, words, 4 * size]`, for `[words, size]`."""
        marked = self.marker_out.both(self.marker_in.each(words).relu_())
        return self.span_in.both(marked.relu_())

    def labels(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a span's inner layer is multiplied by, `[labels, 4 * size]`, and what is added, `[labels]` float32."""
        prompts = self.prompt_out(self.prompt_in(labels).relu_())  # [labels, size]
        return prompts @ self.span_out.weight, prompts.float() @ self.span_out.bias.float()


class GlinerSpanPooler(Pooler):  # type: ignore[misc]
    """Answers each request with the candidates of ``gliner/payload.py``, float32 `[candidates, 4 + 2 * classes]`.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        capacity: Candidates of a request that come back without a dense pass.
    """

    def __init__(self, encoder_size: int, config: GlinerConfig, *, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.config = config
        self.capacity = capacity
        self.head = SpanHead(encoder_size, config)
        self._shift = 0 if config.embed_class_token else 1
        self._warm = False

    def get_supported_tasks(self) -> set[str]:
        """Return the one task: a row per candidate, which no other task of vLLM's can carry."""
        return {"token_classify"}

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor on the host for each request; empty for one that can't be answered. Never raises for an item."""
        cursor = pooling_metadata.get_pooling_cursor()
        lengths = cursor.num_scheduled_tokens_cpu.tolist()
        whole = (cursor.prompt_lens_cpu == cursor.num_scheduled_tokens_cpu).tolist()
        given = [_decode(params.extra_kwargs) for params in pooling_metadata.pooling_params]
        items = [
            None if not complete else item if item is not None else self._dummy(length)
            for item, length, complete in zip(given, lengths, whole, strict=True)
        ]
        if hidden_states.is_cuda and not self._warm:
            self.warm_up(hidden_states)
        batch = plan(items, lengths, label_shift=self._shift)
        answers = [torch.zeros(0, COLUMNS) for _ in lengths]
        if len(batch.requests):
            for request, rows in zip(batch.requests.tolist(), self._answer(hidden_states, batch), strict=True):
                if given[request] is not None:
                    answers[request] = torch.from_numpy(rows)
        return answers

    @torch.inference_mode()
    def warm_up(self, hidden: Tensor) -> None:
        """Run every form in which the head's kernels are compiled, on vLLM's first profile run: no client is to wait for a compiler.

        Args:
            hidden: `[tokens, encoder]`, as many as a profile run has; of fewer than 512 nothing is tried.
        """
        if hidden.shape[0] < 512:
            return
        self._warm = True
        word = np.zeros(1, np.int32)
        # the span kernel's label blocks, each with its dense pass; then the LSTM's form for many sequences
        steps = [[Item(word, np.arange(labels, dtype=np.int32), 0.5, classes=1)] for labels in (1, 17, 33)]
        for items in (*steps, [Item(word, word, 0.5)] * 129):
            each = max(len(items[0].labels) + 1, 2)
            self._answer(hidden[: each * len(items)], plan(items, [each] * len(items), label_shift=self._shift))

    def _dummy(self, length: int) -> Item:
        words = np.arange(min(length, self.config.max_words), dtype=np.int32)
        return Item(words, words[:_DUMMY_LABELS], 0.5)

    def _answer(self, hidden: Tensor, batch: Batch) -> list[Rows]:
        placed = _Placed(batch, hidden.device)
        gathered = hidden.index_select(0, placed.rows)
        if self.head.projection is not None:
            gathered = self.head.projection(gathered)  # [words + labels, size]
        words, labels = gathered[: batch.words], gathered[batch.words :]
        if len(batch.missing):
            words = words.index_fill(0, placed.missing, 0.0)
        for layer in self.head.lstm:
            words = layer(words, placed.word_offsets, placed.order)
        start, end = self.head.spans(words)
        label, label_bias = self.head.labels(labels)
        found = span_scores(
            start,
            end,
            label,
            label_bias,
            placed.word_offsets,
            placed.label_offsets,
            placed.thresholds,
            max_width=self.config.max_width,
            capacity=self.capacity,
            max_words=batch.max_words,
            max_labels=batch.max_labels,
        )
        counts, spans, logits = _to_host(*found)
        answers = candidates(counts, spans, logits)
        for item in np.flatnonzero((counts > self.capacity) | (batch.classes > 0)).tolist():
            words_of = slice(*batch.word_offsets[item : item + 2].tolist())
            labels_of = slice(*batch.label_offsets[item : item + 2].tolist())
            dense = span_logits(
                start[words_of],
                end[words_of],
                label[labels_of],
                label_bias[labels_of],
                max_width=self.config.max_width,
            )
            answers[item] = all_candidates(dense, float(batch.thresholds[item]), int(batch.classes[item]))
        return answers


class _Placed:
    """A batch's indices on the device, brought there in one copy."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        parts = (
            batch.rows,
            batch.missing,
            batch.order,
            batch.word_offsets,
            batch.label_offsets,
            batch.thresholds.view(np.int32),
        )
        sizes = [len(part) for part in parts]
        host = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
        np.concatenate(parts, out=host.numpy())
        self.rows, missing, self.order, self.word_offsets, self.label_offsets, cuts = torch.split(
            host.to(device, non_blocking=True), sizes
        )
        # index_fill takes no other type
        self.missing = missing.long() if len(batch.missing) else missing
        self.thresholds = cuts.view(torch.float32)


def _decode(extra: dict[str, object] | None) -> Item | None:
    """Return the item of a request. What is no item of ours becomes one without words, and so an empty answer."""
    try:
        return decode(extra)
    except (KeyError, TypeError, ValueError):
        return Item(np.zeros(0, np.int32), np.zeros(0, np.int32), 1.0)


def _to_host(*tensors: Tensor) -> list[NDArray[Any]]:
    """Copy tensors to the host, with one wait for all of them."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if tensors[0].is_cuda:
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copy.numpy() for copy in copies]


def candidates(counts: NDArray[np.int32], spans: NDArray[np.int32], logits: Rows) -> list[Rows]:
    """Return each item's rows `[candidates, 4]` from the kernel's padded ones; at most as many as were kept."""
    kept = np.minimum(counts, logits.shape[1])
    taken = np.arange(logits.shape[1])[None] < kept[:, None]  # [items, capacity]
    rows = np.concatenate([spans[taken].astype(np.float32), logits[taken][:, None]], axis=1)
    return np.split(rows, np.cumsum(kept)[:-1])


def all_candidates(dense: Tensor, threshold: float, classes: int) -> Rows:
    """Return the rows of one item from all its logits.

    Args:
        dense: `[words, widths, labels]` float32.
        threshold: The logit from which on a span is a candidate.
        classes: How many of a span's best classes come along, as pairs of class and logit; where there are fewer labels, the rest
            is class -1 and minus infinity.

    Returns:
        `[candidates, 4 + 2 * classes]`, by start, width and class.
    """
    count, widths, labels = dense.shape
    inside = torch.arange(count)[:, None] + torch.arange(widths)[None] < count  # [words, widths]
    host = dense.cpu()
    start, width, label = ((host >= threshold) & inside[:, :, None]).nonzero(as_tuple=True)
    columns = [torch.stack([start, width, label]).float(), host[start, width, label][None]]
    if classes:
        wanted = min(classes, labels)
        logits, indices = (best.cpu()[start, width] for best in dense.topk(wanted, dim=-1))  # [candidates, wanted]
        pairs = torch.stack([indices.float(), logits], dim=-1).flatten(1)
        padding = torch.tensor([-1.0, -torch.inf]).repeat(len(start), classes - wanted)
        columns += [pairs.T, padding.T]
    rows: Rows = torch.cat(columns).T.contiguous().numpy()
    return rows
