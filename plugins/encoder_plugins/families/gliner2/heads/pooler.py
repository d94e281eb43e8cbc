"""The head of GLiNER2's span models: rows of a packed batch in; counts, candidate spans and logits of labels of each text out.

Equal to gliner2 2.1.0's span architecture. The number of queries of a task depends on what the model predicts for it, so that a batch
goes in two parts: counts are computed first and copied to the host while the device computes the words' share of every span; then the
fields of tasks with a count become queries, and all texts' spans are scored at once. The span's last two layers are split and folded
as in ``families/gliner/heads/span.py``. Nothing of a text depends on the others of its batch.

The host waits for the device once, for candidates, where all tasks are entities or classifications: entities have one step, whatever their
count is. Other tasks need their counts before, and while the host waits for those the device has the words' share to compute. Texts whose
candidates overflow cost one more wait together, and so do texts with attributes, whose logits are computed for candidates only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_kernels.span_scores import span_logits, span_scores
from encoder_plugins.backbones.marked_pooler import MarkedPooler, PooledRequest, requests_of
from encoder_plugins.families.gliner.heads.batch import cut
from encoder_plugins.families.gliner.heads.gather import DeviceRows
from encoder_plugins.families.gliner.heads.row_groups import GroupRule, RowPlan, TextRows, plan
from encoder_plugins.families.gliner.heads.transfers import HostCopies, in_parts, to_device, to_host
from encoder_plugins.families.gliner2.config import Gliner2Config
from encoder_plugins.families.gliner2.heads.layers import FieldSteps, Gliner2Head
from encoder_plugins.families.gliner2.payload import COLUMNS, COUNTS, Item, SpanItem, decode, encode_output, join

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# candidates of a text that come back without a dense pass; 16 bytes each are copied for every text of a step
CAPACITY = 2048
MOST_STEPS = COUNTS - 1
# logits of dense passes that are on their way to the host at once: 32 MiB
DENSE_LOGITS = 1 << 23
# a profile run takes all tokens of a request for words, up to so many, and the first ones for fields
_DUMMY_WORDS, _DUMMY_FIELDS = 1024, 16
# queries that the span kernel's blocks are compiled for, and words of which every span is more than a text's candidates
_FORMS, _FORM_WORDS = (1, 17, 33), 512
_RULES = {
    "words": GroupRule(may_be_empty=True),
    "parts": GroupRule(may_be_empty=True),
    "fields": GroupRule(may_be_empty=True),
    "labels": GroupRule(may_be_empty=True),
}


class Gliner2SpanPooler(MarkedPooler):
    """Answers each request with the tables of its texts as ``gliner2/payload.py`` joins them, float32.

    Args:
        size: Width of the encoder's rows.
        config: The checkpoint's own settings.
        capacity: Candidates of a text that come back without a dense pass.
    """

    # rows of a number of their own, which no other task of vLLM can carry
    task = "token_classify"

    def __init__(self, size: int, config: Gliner2Config, *, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.config = config
        self.capacity = capacity
        self.head = Gliner2Head(size, config)
        self._warm = False

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor on the host for each request; empty for one that cannot be answered. Never raises for a request."""
        requests = requests_of(pooling_metadata)
        texts = [_texts(request) for request in requests]
        if hidden_states.is_cuda and not self._warm:
            self.warm_up(hidden_states)
        batch = _Batch.plan([item for own in texts for item, _ in own], [tokens for own in texts for _, tokens in own])
        tables: list[list[Tensor]] = [[] for _ in requests]
        if batch.items:
            # a profile run has to need what the largest batch needs
            steps = None if any(request.extra for request in requests) else MOST_STEPS
            owners = np.repeat(np.arange(len(requests)), list(map(len, texts)))[batch.rows.texts]
            for owner, table in zip(owners.tolist(), self._answer(hidden_states, batch, steps), strict=True):
                tables[owner].append(table)
        return [
            join(found) if request.extra and len(found) == len(own) else torch.zeros(0, COLUMNS)
            for request, own, found in zip(requests, texts, tables, strict=True)
        ]

    @torch.inference_mode()
    def warm_up(self, hidden: Tensor) -> None:
        """Compile every form of the head's kernels, in vLLM's first profile run, so that no client waits for a compiler.

        Args:
            hidden: `[tokens, size]`, as many as a profile run has; with fewer than 512 nothing is run.
        """
        if hidden.shape[0] < _FORM_WORDS:
            return
        self._warm = True
        # zeros have finite logits, all of which reach a threshold of 0: more than are kept, so that dense passes are compiled, too
        rows = torch.zeros_like(hidden[:_FORM_WORDS])
        words = np.arange(_FORM_WORDS, dtype=np.int32)
        for count in _FORMS:
            fields = words[:count]
            span = SpanItem(0, fields, np.zeros(count, np.float32), single=True)
            self._answer(rows, _Batch.plan([Item(words, (span,), (fields,))], [_FORM_WORDS]), 1)

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
        heads = head.counts(vectors["parts"]), head.classes(vectors["labels"]).flatten()
        # what is queued behind this copy keeps the device busy while the host waits for it
        early = HostCopies(*heads) if steps is None and batch.counted else None
        start, end = head.spans(vectors["words"])
        host_heads = None if early is None else early.wait()
        predicted = np.full(len(heads[0]), steps or 1) if host_heads is None else host_heads[0].argmax(-1)
        queries = _Queries.plan(batch, predicted)
        scored = self._score(start, end, vectors["fields"], rows, batch, queries) if queries.total else None
        waited = to_host(*(() if scored is None else scored.found), *(heads if host_heads is None else ()))
        count_logits, class_logits = host_heads or waited[-2:]
        tables = [np.zeros((0, COLUMNS + item.attributes), np.float32) for item in batch.items]
        if scored is not None:
            present = np.ones(len(predicted), np.bool_) if steps is not None else count_logits.argmax(-1) > 0
            tables = self._tables(scored, waited[:3], batch, queries, present)
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

    def _score(
        self, start: Tensor, end: Tensor, fields: Tensor, rows: DeviceRows, batch: _Batch, queries: _Queries
    ) -> _Scored:
        """Queue the scores of all texts' spans."""
        active, chosen, offsets = to_device(
            start.device, queries.steps.fields, queries.order, queries.offsets.astype(np.int32)
        )
        made = self.head.queries(fields.index_select(0, active), queries.steps)
        label, bias = self.head.folded(made)
        scored, scored_bias = label.index_select(0, chosen), bias.index_select(0, chosen)
        found = span_scores(
            start,
            end,
            scored,
            scored_bias,
            rows.offsets["words"],
            offsets,
            rows.extra["thresholds"],
            max_width=self.config.max_width,
            capacity=self.capacity,
            max_words=batch.rows.groups["words"].most,
            max_labels=int(np.diff(queries.offsets).max()),
        )
        return _Scored(start, end, label, bias, scored, scored_bias, found)

    def _tables(
        self,
        scored: _Scored,
        found: Sequence[NDArray[Any]],
        batch: _Batch,
        queries: _Queries,
        present: NDArray[np.bool_],
    ) -> list[Floats]:
        """Return each text's candidates, `[candidates, COLUMNS + attributes]`, by task, step, field, start and width.

        Args:
            scored: What was queued.
            found: What the kernel returned, on the host.
            batch: The texts.
            queries: What spans were scored with.
            present: `[span tasks]`: whether a task's count is above zero; the others have no candidates.
        """
        counts, spans, logits = found
        kept = [
            (spans[text, :count].astype(np.int64), logits[text, :count])
            for text, count in enumerate(np.minimum(counts, self.capacity).tolist())
        ]
        beyond = np.flatnonzero(counts > self.capacity).tolist()
        passes = in_parts(self._dense(scored, beyond, batch, queries), DENSE_LOGITS)
        for text, (dense,) in zip(beyond, passes, strict=True):
            kept[text] = _above(dense, float(batch.thresholds[text]))
        tables: list[Floats] = []
        for text, (item, (places, values)) in enumerate(zip(batch.items, kept, strict=True)):
            first = int(queries.offsets[text])
            places, values = queries.kept(item, first, places, values, present[batch.rows.groups["parts"].of(text)])
            table = np.zeros((len(places), COLUMNS + item.attributes), np.float32)
            table[:, :3] = queries.names[first + places[:, 2]]
            table[:, 3:5] = places[:, :2]
            table[:, 5] = values
            tables.append(table)
        self._add_attributes(scored, tables, batch, queries)
        return tables

    def _dense(self, scored: _Scored, texts: Sequence[int], batch: _Batch, queries: _Queries) -> Iterator[list[Tensor]]:
        """Yield all logits of some texts, `[words, widths, queries]`."""
        words = batch.rows.groups["words"]
        for text in texts:
            of_words, of_queries = words.of(text), slice(*queries.offsets[text : text + 2].tolist())
            yield [
                span_logits(
                    scored.start[of_words],
                    scored.end[of_words],
                    scored.label[of_queries],
                    scored.label_bias[of_queries],
                    max_width=self.config.max_width,
                )
            ]

    def _add_attributes(self, scored: _Scored, tables: Sequence[Floats], batch: _Batch, queries: _Queries) -> None:
        """Write the logits of attributes behind those of candidates, with one wait for all texts."""
        wanted = [
            (text, rows, numbers)
            for text, of_text in enumerate(queries.attributes)
            for task, numbers in of_text
            if len(rows := np.flatnonzero(tables[text][:, 0] == task))
        ]
        if not wanted:
            return
        words = batch.rows.groups["words"]
        begins = [words.of(text).start + tables[text][rows, 3].astype(np.int64) for text, rows, _ in wanted]
        ends = [
            begin + tables[text][rows, 4].astype(np.int64)
            for begin, (text, rows, _) in zip(begins, wanted, strict=True)
        ]
        sizes, widths = [len(rows) for _, rows, _ in wanted], [len(numbers) for _, _, numbers in wanted]
        begin, end, number = to_device(
            scored.start.device,
            np.concatenate(begins),
            np.concatenate(ends),
            np.concatenate([numbers for _, _, numbers in wanted]),
        )
        more = []
        for first, last, labels in zip(
            torch.split(begin, sizes), torch.split(end, sizes), torch.split(number, widths), strict=True
        ):
            inner = (scored.start[first] + scored.end[last]).relu_()
            # sums in float32, as in the kernel
            more.append(inner.float() @ scored.all_labels[labels].float().T + scored.all_biases[labels])
        for (text, rows, numbers), values in zip(wanted, to_host(*more), strict=True):
            tables[text][rows, COLUMNS : COLUMNS + len(numbers)] = values


class _Scored(NamedTuple):
    """What spans were scored with, and the candidates, on the device.

    Attributes:
        start: `[words, 4 * size]`: each word's share of the spans that it begins.
        end: `[words, 4 * size]`: of those that it ends.
        all_labels: `[queries, 4 * size]`: all queries, also those of attributes.
        all_biases: `[queries]` float32: what is added.
        label: `[scored, 4 * size]`: the queries of candidates, by text.
        label_bias: `[scored]` float32.
        found: Counts, spans and logits, as ``span_scores`` returns them.
    """

    start: Tensor
    end: Tensor
    all_labels: Tensor
    all_biases: Tensor
    label: Tensor
    label_bias: Tensor
    found: tuple[Tensor, Tensor, Tensor]


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

    @property
    def counted(self) -> bool:
        """Return whether the number of queries of any task depends on its count."""
        return any(not span.single for item in self.items for span in item.spans)

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

    def kept(
        self, item: Item, first: int, places: Ints, values: Floats, present: NDArray[np.bool_]
    ) -> tuple[Ints, Floats]:
        """Return the candidates whose probability is at least their field's threshold, compared in float32, in order.

        Args:
            item: The text.
            first: Its first query in ``order``.
            places: `[candidates, 3]`: start, further words, and the query, counted from the text's first.
            values: `[candidates]`: their logits.
            present: `[span tasks]`: whether a task of the text has candidates at all.
        """
        wanted = self.names[first + places[:, 2]]
        # no probability is above one
        limits = np.full(len(places), 2.0, np.float32)
        for task in np.flatnonzero(present).tolist():
            of_task = wanted[:, 0] == task
            limits[of_task] = item.spans[task].thresholds[wanted[of_task, 2]]
        probable = torch.sigmoid(torch.from_numpy(np.ascontiguousarray(values))).numpy() >= limits
        places, values = places[probable], values[probable]
        order = np.lexsort((places[:, 1], places[:, 0], places[:, 2]))
        return places[order], values[order]


def _texts(request: PooledRequest) -> list[tuple[Item | None, int]]:
    """Return what is wanted of each text of a request, and its tokens; nothing of a request that is not of ours, or not whole."""
    nothing: list[tuple[Item | None, int]] = [(None, request.tokens)]
    if not request.whole:
        return nothing
    try:
        items = decode(request.extra)
    except (KeyError, TypeError, ValueError):
        return nothing
    if items is None:
        return nothing if request.extra else [(_dummy(request.tokens), request.tokens)]
    counts = request.texts().tolist()
    if len(counts) != len(items) or not all(map(_is_sound, items)):
        return nothing
    return list(zip(items, counts, strict=True))


def _is_sound(item: Item) -> bool:
    return all(len(span.fields) > span.attributes >= 0 and (span.single or not span.attributes) for span in item.spans)


def _dummy(tokens: int) -> Item:
    words = np.arange(min(tokens, _DUMMY_WORDS), dtype=np.int32)
    fields = words[:_DUMMY_FIELDS]
    return Item(words, (SpanItem(0, fields, np.full(len(fields), 0.5, np.float32)),), (fields,))


def _above(dense: Floats, threshold: float) -> tuple[Ints, Floats]:
    """Return start, further words and query of every span of which a logit is at least ``threshold``, and the logits."""
    words, widths, _ = dense.shape
    inside = np.arange(words)[:, None] + np.arange(widths) < words
    places = np.argwhere((dense >= threshold) & inside[:, :, None])
    return places, dense[tuple(places.T)]
