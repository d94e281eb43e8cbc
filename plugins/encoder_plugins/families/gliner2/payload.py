"""What crosses the process border: where words, tasks and labels are, to the pooler; counts, candidates and logits, from it.

Positions are packed into bytes, because vLLM copies a request's parameters deeply and bytes cost nothing there. The pooler answers each
prompt with one tensor of float32, because vLLM sends one for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encoder_plugins.backbones import token_marks

COUNTS = 20
"""Classes of the head that predicts counts: 0 to 19."""

# columns of a candidate; behind them come the logits of the labels of attributes
TASK, STEP, FIELD, START, WIDTH, LOGIT = range(6)
COLUMNS = 6

_POSITION = np.dtype("<i4")
_NUMBER = np.dtype("<f4")
# the keys of a text's arrays, whose numbers have four bytes each
_ARRAYS = ("words", "tasks", "thresholds", "classes")

Positions = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SpanItem:
    """A task whose fields have spans as values, as the pooler sees it.

    Attributes:
        part: The position of ``[P]``.
        fields: `[fields]` int32: the positions of their marks.
        thresholds: `[fields]` float32: candidates have at least this probability.
        single: Whether only the first step counts: entities.
        attributes: The last so many fields are labels of attributes. They have no candidates; their logits come along with those
            of the others.
    """

    part: int
    fields: Positions
    thresholds: NDArray[np.float32]
    single: bool = False
    attributes: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """One text, as the pooler sees it.

    Attributes:
        words: `[words]` int32: the position of each word's first token; words of choices come first.
        spans: Structures, entities, relations.
        classes: Of each classification, `[labels]` int32: the positions of its labels' marks.
    """

    words: Positions
    spans: tuple[SpanItem, ...]
    classes: tuple[Positions, ...]

    @property
    def attributes(self) -> int:
        """The number of logits that come along with a candidate."""
        return max((span.attributes for span in self.spans), default=0)


@dataclass(frozen=True, slots=True)
class Output:
    """What the model found in a text.

    Attributes:
        counts: `[span tasks]`: the predicted number of instances.
        count_logits: `[span tasks, COUNTS]` float32.
        places: `[candidates, 5]`: task, step, field, first word, further words.
        logits: `[candidates]` float32.
        attributes: `[candidates, labels of attributes]` float32; 0 for tasks without any.
        classes: Of each classification, `[labels]` float32.
    """

    counts: NDArray[np.int64]
    count_logits: torch.Tensor
    places: NDArray[np.int64]
    logits: torch.Tensor
    attributes: torch.Tensor
    classes: tuple[torch.Tensor, ...]


def encode(item: Item) -> dict[str, Any]:
    """Return the ``extra_kwargs`` of the PoolingParams of a prompt that holds one text."""
    tasks: list[int] = []
    for span in item.spans:
        tasks += (span.part, int(span.single), span.attributes, len(span.fields), *span.fields.tolist())
    labels: list[int] = []
    for positions in item.classes:
        labels += (len(positions), *positions.tolist())
    thresholds = np.concatenate([np.zeros(0, _NUMBER), *(span.thresholds for span in item.spans)])
    return {
        "words": item.words.astype(_POSITION).tobytes(),
        "tasks": np.array(tasks, _POSITION).tobytes(),
        "thresholds": thresholds.astype(_NUMBER).tobytes(),
        "classes": np.array(labels, _POSITION).tobytes(),
    }


def encode_texts(items: Sequence[Item], tokens: Sequence[int]) -> dict[str, Any]:
    """Return the ``extra_kwargs`` of the PoolingParams of a prompt that holds texts, one behind the other.

    Args:
        items: Positions count from each text's own first token.
        tokens: Tokens of each text.
    """
    each = [encode(item) for item in items]
    if len(each) == 1:
        return each[0]
    sizes = [[len(one[name]) // _POSITION.itemsize for name in _ARRAYS] for one in each]
    return {
        **{name: b"".join(one[name] for one in each) for name in _ARRAYS},
        "sizes": np.array(sizes, _POSITION).tobytes(),
        **token_marks.encode(tokens),
    }


def decode(extra: Mapping[str, Any] | None) -> list[Item] | None:
    """Return the texts behind ``extra_kwargs``; None where there are none, as in vLLM's own profile runs.

    Raises:
        KeyError, TypeError, ValueError: They are not what ``encode`` or ``encode_texts`` wrote.
    """
    if not extra or "words" not in extra:
        return None
    arrays: list[NDArray[Any]] = [
        np.frombuffer(extra[name], _NUMBER if name == "thresholds" else _POSITION) for name in _ARRAYS
    ]
    if "sizes" not in extra:
        return [_item(arrays)]
    sizes = np.frombuffer(extra["sizes"], _POSITION).reshape(-1, len(_ARRAYS))
    if (sizes < 0).any() or sizes.sum(0).tolist() != list(map(len, arrays)):
        raise ValueError(f"{[len(array) for array in arrays]} values there, {sizes.sum(0).tolist()} announced")
    each = [np.split(array, np.cumsum(own)[:-1]) for array, own in zip(arrays, sizes.T, strict=True)]
    return [_item(own) for own in zip(*each, strict=True)]


def _item(arrays: Sequence[NDArray[Any]]) -> Item:
    """Return the text whose ``_ARRAYS`` are given; raises ValueError where they do not fit together."""
    words, tasks, thresholds, labels = arrays
    spans, classes = [], []
    while tasks.size:
        part, single, attributes, count = tasks[:4].tolist()
        fields, tasks = _taken(tasks[4:], count)
        limits, thresholds = _taken(thresholds, count)
        spans.append(SpanItem(part, fields, limits, bool(single), attributes))
    while labels.size:
        positions, labels = _taken(labels[1:], int(labels[0]))
        classes.append(positions)
    if thresholds.size:
        raise ValueError(f"{thresholds.size} thresholds are left behind all fields")
    return Item(words, tuple(spans), tuple(classes))


def _taken(values: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the first ``count`` values and the others."""
    if not 0 <= count <= len(values):
        raise ValueError(f"{count} values announced, {len(values)} there")
    return values[:count], values[count:]


def encode_output(
    counts: torch.Tensor, classes: Sequence[torch.Tensor], candidates: torch.Tensor, attributes: int
) -> torch.Tensor:
    """Return the table of one text: counts and logits of labels, in as many rows as they need, then candidates.

    Args:
        counts: `[span tasks, COUNTS]`: the logits of counts.
        classes: Of each classification, `[labels]`: their logits.
        candidates: `[candidates, COLUMNS + attributes]`.
        attributes: Logits that come along with a candidate.
    """
    head = torch.cat([counts.flatten().float(), *(logits.float() for logits in classes)])
    columns = COLUMNS + attributes
    padded = torch.nn.functional.pad(head, (0, -head.numel() % columns))
    return torch.cat([padded.reshape(-1, columns), candidates.float()]).contiguous()


def join(tables: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what a prompt is answered with: the table of its text, or `[numbers]`: how many each text has, then those of all tables."""
    if len(tables) == 1:
        return tables[0]
    sizes = torch.tensor([float(table.numel()) for table in tables])
    return torch.cat([sizes, *(table.flatten() for table in tables)])


def split(answer: torch.Tensor, items: Sequence[Item]) -> list[torch.Tensor]:
    """Return the table of each text of a prompt; ``items`` are what was sent.

    Raises:
        RuntimeError: The answer is not of so many texts.
    """
    if len(items) == 1:
        return [answer]
    sizes = answer[: len(items)].long().tolist() if answer.dim() == 1 else []
    if len(items) + sum(sizes) != answer.numel():
        raise RuntimeError(
            f"the engine answered {answer.numel()} numbers, which are not the tables of {len(items)} texts"
        )
    tables = torch.split(answer[len(items) :], sizes)
    return [table.reshape(-1, COLUMNS + item.attributes) for table, item in zip(tables, items, strict=True)]


def decode_output(table: torch.Tensor, item: Item) -> Output:
    """Return what the pooler found; ``table`` is `[rows, COLUMNS + attributes]`, and ``item`` what it was sent."""
    values = table.float()
    sizes = [COUNTS * len(item.spans), *map(len, item.classes)]
    columns = COLUMNS + item.attributes
    rows = -(-sum(sizes) // columns)
    logits, *classes = torch.split(values[:rows].flatten()[: sum(sizes)], sizes)
    count_logits = logits.reshape(-1, COUNTS)
    found = values[rows:]
    return Output(
        counts=count_logits.argmax(-1).numpy(),
        count_logits=count_logits,
        places=found[:, :LOGIT].numpy().astype(np.int64),
        logits=found[:, LOGIT].contiguous(),
        attributes=found[:, COLUMNS:],
        classes=tuple(classes),
    )
