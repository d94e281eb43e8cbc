"""The head of GLiNER's span models: words and labels of a packed batch in, candidate spans of each request out.

Equal to ``UniEncoderSpanModel`` of gliner 0.2.29 with ``span_mode`` markerV0: encoder, projection, first-subword rows,
LSTM over words only, span and prompt MLPs, dot product. Three parts are reordered, which does not change the result:

- Rows are gathered before the projection, which is a function of a row. A word without a row is zeros after it.
- ``out_project``'s first layer is split into halves for start and end, so it is computed per word instead of per span:
  ``W1 relu([s_i; e_j]) + b1 = (W1a relu(s_i) + b1) + W1b relu(e_j)``.
- Its second layer is folded into the labels: ``(W2 z + b2) . p = z . (p W2) + p . b2``.

For a batch of any number of requests: 1 copy to the device (all indices), 1 gather, 9 GEMMs (1 projection, 1 for the LSTM's
gates, 3 for both markers together, 2 + 1 for prompts, 1 vector product), 4 ReLU, 1 launch for the LSTM, 1 for the spans, 3
copies back behind one wait for the device. A small batch is one gather, one launch and two copies (``graphs.py``). A text whose
candidates overflow, or that wants class probabilities, costs one dense pass with one more wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.model_executor.layers.pooler.abstract import Pooler
from vllm.model_executor.layers.pooler.common import PoolingParamsUpdate
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_kernels.span_scores import span_logits, span_scores
from encoder_plugins.backbones import token_marks
from encoder_plugins.backbones.mark_channel import TokenMarksUpdate
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.graphs import Found, HeadGraphs
from encoder_plugins.families.gliner.heads.row_groups import GroupRule, RowPlan, TextRows, plan
from encoder_plugins.families.gliner.heads.span_head import Scored, SpanHead
from encoder_plugins.families.gliner.payload import COLUMNS, LOGIT, START, Item, decode

Rows = NDArray[np.float32]

# candidates of a text that come back without a dense pass; 16 bytes each are copied for every text of a step
CAPACITY = 2048
# a profile run takes all tokens of a request for words, and the first ones for labels
_DUMMY_LABELS = 25
# the sigmoid on the device may round one step away from the processor's, which filters exactly
_SLACK = 1e-6


class GlinerSpanPooler(Pooler):  # type: ignore[misc]
    """Answers each request with the candidates of ``gliner/payload.py``, float32 `[candidates, 4 + 2 * classes]`.

    Args:
        encoder_size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        capacity: Candidates of a text that come back without a dense pass.
    """

    def __init__(self, encoder_size: int, config: GlinerConfig, *, capacity: int = CAPACITY) -> None:
        super().__init__()
        self._encoder_size = encoder_size
        self.config = config
        self.capacity = capacity
        self.head = SpanHead(encoder_size, config)
        self.rules = {
            "words": GroupRule(may_lack_tokens=True),
            "labels": GroupRule(shift=0 if config.embed_class_token else 1),
        }
        self._warm = False
        self.graphs: HeadGraphs | None = None

    def get_supported_tasks(self) -> set[str]:
        """Return the one task: one row per candidate, which no other task of vLLM can carry."""
        return {"token_classify"}

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        """Return what brings the texts of a request into the encoder."""
        del task
        return TokenMarksUpdate()

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor on the host for each request; empty for one that cannot be answered. Never raises for a request."""
        cursor = pooling_metadata.get_pooling_cursor()
        lengths = cursor.num_scheduled_tokens_cpu.tolist()
        prompts = cursor.prompt_lens_cpu.tolist()
        requests = [
            # a request that is not whole has no rows for what comes later
            self._texts(params.extra_kwargs, length) if length == prompt else []
            for params, length, prompt in zip(pooling_metadata.pooling_params, lengths, prompts, strict=True)
        ]
        if hidden_states.is_cuda and not self._warm:
            self.warm_up(hidden_states)
        batch = _Batch.plan(requests, lengths, self.rules)
        found = self._answer(hidden_states, batch) if len(batch.rows.texts) else []
        answers = [torch.zeros(0, COLUMNS) for _ in lengths]
        for request, tables in batch.by_request(found).items():
            if pooling_metadata.pooling_params[request].extra_kwargs:
                answers[request] = torch.from_numpy(np.concatenate(tables) if len(tables) > 1 else tables[0])
        return answers

    @torch.inference_mode()
    def warm_up(self, hidden: Tensor) -> None:
        """Compile every form of the head's kernels, in vLLM's first profile run, so that no client waits for a compiler.

        Args:
            hidden: `[tokens, encoder]`, as many as a profile run has; with fewer than 512 nothing is run.
        """
        if hidden.shape[0] < 512:
            return
        self._warm = True
        word = np.zeros(1, np.int32)
        # the span kernel's label blocks, each with its dense pass; then the LSTM's form for many sequences
        batches = [[Item(word, np.arange(labels, dtype=np.int32), 0.5, classes=1)] for labels in (1, 17, 33)]
        for items in (*batches, [Item(word, word, 0.5)] * 129):
            tokens = max(len(items[0].labels) + 1, 2)
            requests = [[(item, tokens)] for item in items]
            self._answer(hidden[: tokens * len(items)], _Batch.plan(requests, [tokens] * len(items), self.rules))

    def _texts(self, extra: dict[str, Any] | None, tokens: int) -> list[tuple[Item, int]]:
        """Return a request's texts with the tokens of each; none for what is not a request of ours."""
        try:
            items = decode(extra)
        except (KeyError, TypeError, ValueError):
            return []
        if items is None:
            return [] if extra else [(self._dummy(tokens), tokens)]
        marks = token_marks.decode(extra, tokens)
        counts = [tokens] if marks is None else marks.tokens.tolist()
        return list(zip(items, counts, strict=True)) if len(items) == len(counts) else []

    def _dummy(self, tokens: int) -> Item:
        words = np.arange(min(tokens, self.config.max_words), dtype=np.int32)
        return Item(words, words[:_DUMMY_LABELS], 0.5)

    @torch.inference_mode()
    def capture(self, device: torch.device) -> None:
        """Capture the head as CUDA graphs, after the weights are loaded."""
        self.graphs = HeadGraphs(self.head, self._encoder_size, self.config, self.capacity, device)

    def _answer(self, hidden: Tensor, batch: _Batch) -> list[Rows]:
        """Return the candidates of each text that is answered."""
        found = None if self.graphs is None else self.graphs.run(hidden, batch.rows, batch.order, batch.thresholds)
        if found is None:
            found = self._launch(hidden, batch)
        answers = candidates(found.counts, found.spans, found.logits)
        words_group, labels_group = batch.rows.groups["words"], batch.rows.groups["labels"]
        for text in np.flatnonzero((found.counts > self.capacity) | (batch.classes > 0)).tolist():
            words_of, labels_of = words_group.of(text), labels_group.of(text)
            dense = span_logits(
                found.scored.start[words_of],
                found.scored.end[words_of],
                found.scored.label[labels_of],
                found.scored.label_bias[labels_of],
                max_width=self.config.max_width,
            )
            answers[text] = all_candidates(dense, float(batch.thresholds[text]), int(batch.classes[text]))
        return answers

    def _launch(self, hidden: Tensor, batch: _Batch) -> Found:
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
        counts, spans, logits = _to_host(*found)
        return Found(counts, spans, logits, scored)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The texts of a batch that are answered.

    Attributes:
        rows: Their words and labels.
        requests: `[texts]` the request of each text.
        first_words: `[texts]` words of the texts before it in the same request.
        order: `[texts]` int32: the texts, those with most words first.
        thresholds: `[texts]` float32: the logit from which on a span is a candidate.
        classes: `[texts]` how many of the best classes each text wants.
    """

    rows: RowPlan
    requests: list[int]
    first_words: list[int]
    order: NDArray[np.int32]
    thresholds: NDArray[np.float32]
    classes: NDArray[np.int32]

    @classmethod
    def plan(
        cls, requests: Sequence[Sequence[tuple[Item, int]]], lengths: Sequence[int], rules: Mapping[str, GroupRule]
    ) -> _Batch:
        """Plan a batch.

        Args:
            requests: The texts of each request, with the tokens of each.
            lengths: Tokens of each request, packed one behind the other.
            rules: The rows that each text has.
        """
        texts: list[TextRows] = []
        items: list[Item] = []
        owners: list[int] = []
        first_words: list[int] = []
        begin = 0
        for request, (pairs, length) in enumerate(zip(requests, lengths, strict=True)):
            start, words = begin, 0
            for item, tokens in pairs:
                texts.append(TextRows(start, tokens, {"words": item.words, "labels": item.labels}))
                items.append(item)
                owners.append(request)
                first_words.append(words)
                start, words = start + tokens, words + len(item.words)
            begin += length
        rows = plan(texts, rules)
        chosen = rows.texts.tolist()
        return cls(
            rows=rows,
            requests=[owners[text] for text in chosen],
            first_words=[first_words[text] for text in chosen],
            order=np.argsort(-rows.groups["words"].counts, kind="stable").astype(np.int32),
            thresholds=np.asarray([cut(items[text].threshold) for text in chosen], np.float32),
            classes=np.asarray([items[text].classes for text in chosen], np.int32),
        )

    def by_request(self, answers: Sequence[Rows]) -> dict[int, list[Rows]]:
        """Return the candidates of each request; starts count the words of all its texts."""
        found: dict[int, list[Rows]] = {}
        for request, words, table in zip(self.requests, self.first_words, answers, strict=True):
            if words:
                table[:, START] += words
            found.setdefault(request, []).append(table)
        return found


def cut(threshold: float) -> float:
    """Return the logit of a probability, slightly lower; infinite at the ends. NaN becomes infinity, above which is nothing."""
    probability = threshold - _SLACK
    if math.isnan(probability) or probability >= 1.0:
        return math.inf
    return math.log(probability / (1.0 - probability)) if probability > 0.0 else -math.inf


def _to_host(*tensors: Tensor) -> list[NDArray[Any]]:
    """Copy tensors to the host, with one wait for all of them."""
    if not tensors[0].is_cuda:
        return [tensor.numpy() for tensor in tensors]
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copy.numpy() for copy in copies]


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
