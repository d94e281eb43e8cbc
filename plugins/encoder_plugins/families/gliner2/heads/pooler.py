"""The head of GLiNER2's span models: rows of a packed batch in; counts, candidate spans and logits of labels of each text out.

Equal to gliner2 2.1.0's span architecture. The number of queries of a task depends on what the model predicts for it, so that a batch
goes in two parts: counts are computed first and copied to the host while the device computes the words' share of every span; then the
fields of tasks with a count become queries, and all texts' spans are scored at once. The span's last two layers are split and folded
as in ``families/gliner/heads/span.py``. Nothing of a text depends on the others of its batch.

A batch waits for the device twice: for counts, and for candidates. Once more for a text whose candidates overflow, and for one that has
attributes, whose logits are computed for candidates only.
"""

from __future__ import annotations

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
from encoder_plugins.families.gliner.heads.batch import cut
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.row_groups import GroupRule, RowPlan, TextRows, plan
from encoder_plugins.families.gliner2.config import Gliner2Config
from encoder_plugins.families.gliner2.heads.layers import FieldSteps, Gliner2Head
from encoder_plugins.families.gliner2.payload import COLUMNS, COUNTS, Item, SpanItem, decode, encode_output

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# candidates of a text that come back without a dense pass; 16 bytes each are copied for every text of a step
CAPACITY = 2048
MOST_STEPS = COUNTS - 1
# a profile run takes all tokens of a request for words, up to so many, and the first ones for fields
_DUMMY_WORDS, _DUMMY_FIELDS = 1024, 16
_RULES = {
    "words": GroupRule(may_be_empty=True),
    "parts": GroupRule(may_be_empty=True),
    "fields": GroupRule(may_be_empty=True),
    "labels": GroupRule(may_be_empty=True),
}


class Gliner2SpanPooler(Pooler):  # type: ignore[misc]
    """Answers each request with the table of ``gliner2/payload.py``, float32.

    Args:
        size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        capacity: Candidates of a text that come back without a dense pass.
    """

    def __init__(self, size: int, config: Gliner2Config, *, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.config = config
        self.capacity = capacity
        self.head = Gliner2Head(size, config)

    def get_supported_tasks(self) -> set[str]:
        """Return the one task: rows of a number of their own, which no other task of vLLM can carry."""
        return {"token_classify"}

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        """Return what the pooler wants beside its rows: nothing."""
        del task
        return PoolingParamsUpdate()

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor on the host for each request; empty for one that cannot be answered. Never raises for a request."""
        cursor = pooling_metadata.get_pooling_cursor()
        lengths = cursor.num_scheduled_tokens_cpu.tolist()
        prompts = cursor.prompt_lens_cpu.tolist()
        extras = [params.extra_kwargs for params in pooling_metadata.pooling_params]
        # a request that is not whole has no rows for what comes later
        items = [
            _item(extra, length) if length == prompt else None
            for extra, length, prompt in zip(extras, lengths, prompts, strict=True)
        ]
        answers = [torch.zeros(0, COLUMNS) for _ in lengths]
        batch = _Batch.plan(items, lengths)
        if batch.items:
            # a profile run has to need what the largest batch needs
            steps = None if any(extras) else MOST_STEPS
            for request, table in zip(
                batch.rows.texts.tolist(), self._answer(hidden_states, batch, steps), strict=True
            ):
                if extras[request]:
                    answers[request] = table
        return answers

    def _answer(self, hidden: Tensor, batch: _Batch, steps: int | None) -> list[Tensor]:
        """Return the table of each text.

        Args:
            hidden: `[tokens, size]`.
            batch: The texts.
            steps: Every task's count, for a profile run; None for what the model predicts.
        """
        head = self.head
        rows = DeviceRows(batch.rows, hidden.device, thresholds=batch.thresholds)
        vectors = rows.split(rows.gather(hidden))
        counts = _Copied(head.counts(vectors["parts"]))
        labels = _Copied(head.classes(vectors["labels"]).flatten())
        # queued before the host waits for counts
        start, end = head.spans(vectors["words"])
        count_logits = counts.wait()
        predicted = count_logits.argmax(-1) if steps is None else np.full(len(count_logits), steps)
        queries = _Queries.plan(batch, predicted)
        tables: list[Floats] = [np.zeros((0, COLUMNS), np.float32) for _ in batch.items]
        if queries.total:
            tables = self._candidates(start, end, vectors["fields"], rows, batch, queries)
        class_logits = labels.wait()
        answers = []
        for text, (item, table) in enumerate(zip(batch.items, tables, strict=True)):
            found = torch.from_numpy(class_logits[batch.rows.groups["labels"].of(text)])
            answers.append(
                encode_output(
                    torch.from_numpy(count_logits[batch.rows.groups["parts"].of(text)]),
                    torch.split(found, [len(part) for part in item.classes]),
                    torch.from_numpy(table),
                    item.attributes,
                )
            )
        return answers

    def _candidates(
        self, start: Tensor, end: Tensor, fields: Tensor, rows: DeviceRows, batch: _Batch, queries: _Queries
    ) -> list[Floats]:
        """Return each text's candidates, `[candidates, COLUMNS + attributes]`, by task, step, field, start and width."""
        device = start.device
        active = torch.from_numpy(queries.steps.fields).to(device, non_blocking=True)
        made = self.head.queries(fields.index_select(0, active), queries.steps)
        label, bias = self.head.folded(made)
        chosen = torch.from_numpy(queries.order).to(device, non_blocking=True)
        scored, scored_bias = label.index_select(0, chosen), bias.index_select(0, chosen)
        offsets = queries.offsets
        words = batch.rows.groups["words"]
        found = span_scores(
            start,
            end,
            scored,
            scored_bias,
            rows.offsets["words"],
            torch.from_numpy(offsets.astype(np.int32)).to(device, non_blocking=True),
            rows.extra["thresholds"],
            max_width=self.config.max_width,
            capacity=self.capacity,
            max_words=words.most,
            max_labels=int(np.diff(offsets).max()),
        )
        counts, spans, logits = (_Copied(tensor) for tensor in found)
        host_counts, host_spans, host_logits = counts.wait(), spans.wait(), logits.wait()
        tables = []
        for text, item in enumerate(batch.items):
            first, last = int(offsets[text]), int(offsets[text + 1])
            of_words = words.of(text)
            count = int(host_counts[text])
            places, values = host_spans[text, :count].astype(np.int64), host_logits[text, :count]
            if count > self.capacity:
                dense = span_logits(
                    start[of_words],
                    end[of_words],
                    scored[first:last],
                    scored_bias[first:last],
                    max_width=self.config.max_width,
                )
                places, values = _above(dense.cpu(), float(batch.thresholds[text]))
            places, values = queries.kept(item, first, places, values)
            table = np.zeros((len(places), COLUMNS + item.attributes), np.float32)
            table[:, :3] = queries.names[first + places[:, 2]]
            table[:, 3:5] = places[:, :2]
            table[:, 5] = values
            for task, numbers in queries.attributes[text]:
                of_task = np.flatnonzero(table[:, 0] == task)
                begin = torch.from_numpy(places[of_task, 0]).to(device) + of_words.start
                inner = (start[begin] + end[begin + torch.from_numpy(places[of_task, 1]).to(device)]).relu_()
                wanted = torch.from_numpy(numbers).to(device)
                # sums in float32, as in the kernel
                more = inner.float() @ label[wanted].float().T + bias[wanted]
                table[of_task, COLUMNS : COLUMNS + len(numbers)] = more.cpu().numpy()
            tables.append(table)
        return tables


@dataclass(frozen=True, slots=True)
class _Batch:
    """The texts of a batch that are answered.

    Attributes:
        rows: Their words, tasks, fields and labels.
        items: What is wanted of each.
        thresholds: `[texts]` float32: the logit from which on a span can be a candidate of some field.
    """

    rows: RowPlan
    items: Sequence[Item]
    thresholds: Floats

    @classmethod
    def plan(cls, items: Sequence[Item | None], lengths: Sequence[int]) -> _Batch:
        """Plan a batch of texts whose tokens are packed one behind the other."""
        starts = np.cumsum([0, *lengths])[:-1].tolist()
        texts = [
            None if item is None else TextRows(start, length, _groups(item))
            for item, start, length in zip(items, starts, lengths, strict=True)
        ]
        rows = plan(texts, _RULES)
        chosen = [item for number in rows.texts.tolist() if (item := items[number]) is not None]
        least = [min((float(span.thresholds.min()) for span in item.spans), default=1.0) for item in chosen]
        return cls(rows, chosen, np.array([cut(threshold) for threshold in least], np.float32))


def _groups(item: Item) -> Mapping[str, NDArray[np.int32]]:
    none = np.zeros(0, np.int32)
    return {
        "words": item.words,
        "parts": np.array([span.part for span in item.spans], np.int32),
        "fields": np.concatenate([none, *(span.fields for span in item.spans)]),
        "labels": np.concatenate([none, *item.classes]),
    }


@dataclass(frozen=True, slots=True)
class _Queries:
    """The queries of a batch: one for each field of a task and each step of its count.

    Attributes:
        steps: In which order they are made.
        order: `[scored]`: those that spans are scored with, by text, task, step and field; attributes are not among them.
        names: `[scored, 3]`: task, step and field of each.
        offsets: `[texts + 1]`: where each text's begin in ``order``, and the end of the last.
        attributes: Of each text: a task, and the queries of its attributes.
    """

    steps: FieldSteps
    order: Ints
    names: Ints
    offsets: Ints
    attributes: Sequence[Sequence[tuple[int, Ints]]]

    @property
    def total(self) -> int:
        """The number of queries."""
        return sum(self.steps.sizes)

    @classmethod
    def plan(cls, batch: _Batch, counts: Ints) -> _Queries:
        """Plan the queries of a batch whose tasks have ``counts``."""
        spans = [(text, task, span) for text, item in enumerate(batch.items) for task, span in enumerate(item.spans)]
        # entities use the first step only
        steps = np.array(
            [
                min(int(count), 1) if span.single else int(count)
                for (_, _, span), count in zip(spans, counts, strict=True)
            ],
            np.int64,
        )
        sizes = np.array([len(span.fields) for _, _, span in spans], np.int64)
        of_field = np.repeat(steps, sizes)
        fields = np.argsort(-of_field, kind="stable")
        fields = fields[of_field[fields] > 0]
        per_step = [int((of_field > step).sum()) for step in range(int(of_field.max(initial=0)))]
        # the number of the query of a field at its first step, and how far apart steps are
        rank = np.empty(len(of_field), np.int64)
        rank[fields] = np.arange(len(fields))
        begins = np.cumsum([0, *per_step])
        tasks = np.repeat(np.arange(len(spans)), sizes)
        together = [tasks[fields[:size]] + step * len(spans) for step, size in enumerate(per_step)]
        groups = np.unique(np.concatenate([np.zeros(0, np.int64), *together]), return_inverse=True)[1]
        order: list[int] = []
        names: list[tuple[int, int, int]] = []
        offsets = [0]
        attributes: list[list[tuple[int, Ints]]] = [[] for _ in batch.items]
        first = np.cumsum([0, *sizes])
        done = 0
        for number, (text, task, span) in enumerate(spans):
            while done < text:
                offsets.append(len(order))
                done += 1
            own = rank[first[number] : first[number + 1]]
            candidates = len(own) - span.attributes
            for step in range(int(steps[number])):
                order += (begins[step] + own[:candidates]).tolist()
                names += [(task, step, field) for field in range(candidates)]
            if span.attributes and steps[number]:
                attributes[text].append((task, own[candidates:]))
        offsets += [len(order)] * (len(batch.items) + 1 - len(offsets))
        return cls(
            FieldSteps(fields, per_step, groups),
            np.array(order, np.int64),
            np.array(names, np.int64).reshape(-1, 3),
            np.array(offsets, np.int64),
            attributes,
        )

    def kept(self, item: Item, first: int, places: Ints, values: Floats) -> tuple[Ints, Floats]:
        """Return the candidates whose probability is at least their field's threshold, compared in float32, in order.

        Args:
            item: The text.
            first: Its first query in ``order``.
            places: `[candidates, 3]`: start, further words, and the query, counted from the text's first.
            values: `[candidates]`: their logits.
        """
        wanted = self.names[first + places[:, 2]]
        limits = np.zeros(len(places), np.float32)
        for task, span in enumerate(item.spans):
            of_task = wanted[:, 0] == task
            limits[of_task] = span.thresholds[wanted[of_task, 2]]
        probable = torch.sigmoid(torch.from_numpy(np.ascontiguousarray(values))).numpy() >= limits
        places, values = places[probable], values[probable]
        order = np.lexsort((places[:, 1], places[:, 0], places[:, 2]))
        return places[order], values[order]


class _Copied:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = tensor
        self._event: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> NDArray[Any]:
        """Return the values, as soon as they are there."""
        if self._event is not None:
            self._event.synchronize()
        values: NDArray[Any] = self._host.numpy()
        return values


def _item(extra: dict[str, Any] | None, tokens: int) -> Item | None:
    """Return what is wanted of a request; None for one that is not of ours."""
    try:
        item = decode(extra)
    except (KeyError, TypeError, ValueError):
        return None
    if item is None:
        return None if extra else _dummy(tokens)
    sound = all(len(span.fields) > span.attributes >= 0 and (span.single or not span.attributes) for span in item.spans)
    return item if sound else None


def _dummy(tokens: int) -> Item:
    words = np.arange(min(tokens, _DUMMY_WORDS), dtype=np.int32)
    fields = words[:_DUMMY_FIELDS]
    return Item(words, (SpanItem(0, fields, np.full(len(fields), 0.5, np.float32)),), (fields,))


def _above(dense: Tensor, threshold: float) -> tuple[Ints, Floats]:
    """Return start, further words and query of every span of which a logit is at least ``threshold``, and the logits."""
    words, widths, _ = dense.shape
    inside = torch.arange(words)[:, None] + torch.arange(widths) < words
    places = ((dense >= threshold) & inside[:, :, None]).nonzero()
    return places.numpy(), dense[tuple(places.T)].float().numpy()
