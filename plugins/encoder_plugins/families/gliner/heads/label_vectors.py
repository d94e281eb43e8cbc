"""The vectors of labels, by an encoder of their own: a bounded cache in front of it, and slices of one shape behind that.

A label comes as the token ids that the tokenizer made of it, with every request that uses it. So a request can be answered by any
engine at any time: what a cache lacks is encoded, and nothing that it has can be out of date or another label's, because the token
ids are the key.

A vector must not depend on the labels that are encoded with it. On a GPU a pass of the encoder always has the same number of rows, and its
attention computes each label by itself, so that labels of any lengths share a pass. On a CPU attention computes labels of similar lengths
together. There each pass has labels of one length only, as many as fill it; where there are fewer, the first is there more than once. Either
way the shape of everything that is computed for a label follows from the label alone, and so do the bits of its vector.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention

from encoder_plugins.backbones.attention import VarlenMetadata
from encoder_plugins.families.gliner.heads.transfers import to_device
from encoder_plugins.families.gliner.payload import LABEL_CACHE_BYTES, VECTOR_LIMIT, run_vector


@dataclass(frozen=True, slots=True)
class Passes:
    """What a pass of the encoder has.

    Attributes:
        tokens: Rows, at most; a longer label has a pass of its own.
        mixed: Whether labels of different lengths share a pass.
    """

    tokens: int
    mixed: bool


# a GPU is busy with the larger one, and a CPU soon done with the smaller one
PASSES = {"cpu": Passes(128, mixed=False), "cuda": Passes(2048, mixed=True)}


@dataclass(frozen=True, slots=True)
class Slice:
    """The labels of one pass, by their places among all.

    Attributes:
        chosen: The labels.
        fillers: How many times the first is there beside that.
        rows: Rows of the pass; those behind the labels are padding.
        vectors: Vectors that are computed; those behind the labels' are of no use.
    """

    chosen: NDArray[np.int64]
    fillers: int
    rows: int
    vectors: int


def slices(lengths: NDArray[np.int64], passes: Passes) -> Iterator[Slice]:
    """Yield the passes for labels of these many tokens; each is in one of them, and the shorter ones come first."""
    order = np.argsort(lengths, kind="stable")
    if passes.mixed:
        begin = 0
        ends = np.cumsum(lengths[order])
        while begin < len(order):
            before = ends[begin] - lengths[order[begin]]
            end = max(begin + 1, int(np.searchsorted(ends, before + passes.tokens, side="right")))
            rows = max(passes.tokens, int(ends[end - 1] - before))
            yield Slice(order[begin:end], 0, rows, rows)
            begin = end
        return
    for length in np.unique(lengths).tolist():
        same = order[lengths[order] == length]
        count = max(1, passes.tokens // length)
        for begin in range(0, len(same), count):
            chosen = same[begin : begin + count]
            yield Slice(chosen, count - len(chosen), count * length, count)


Run = bytes
"""The token ids of a label: int32, little-endian. Or its vector: ``payload.vector_run``."""


class VectorCache:
    """The vectors of the runs that were used last.

    Args:
        size: Width of a vector.
        capacity: Bytes of the vectors that are kept, on the device of the encoder.
    """

    def __init__(self, size: int, capacity: int = LABEL_CACHE_BYTES) -> None:
        self._size = size
        self._capacity = capacity
        self._table: Tensor | None = None
        # by last use, the oldest first
        self._rows: OrderedDict[Run, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def allocate(self, like: Tensor) -> None:
        """Allocate all of the cache, once, with the dtype and on the device of ``like``."""
        if self._table is None:
            count = self._capacity // (self._size * like.element_size())
            self._table = like.new_empty(count, self._size)

    def get(self, runs: Sequence[Run], encode: Callable[[list[Run]], Tensor], like: Tensor) -> Tensor:
        """Return `[runs, size]`, which later calls do not change.

        Args:
            runs: Different from each other.
            encode: Returns `[runs, size]` for those that are not in the cache.
            like: A tensor with the dtype and the device of the vectors.
        """
        self.allocate(like)
        assert self._table is not None
        found = [(place, row) for place, run in enumerate(runs) if (row := self._rows.get(run)) is not None]
        for place, _ in found:
            self._rows.move_to_end(runs[place])
        if len(found) == len(runs):
            return self._table[_indices([row for _, row in found], like)]
        missing = [place for place, run in enumerate(runs) if run not in self._rows]
        fresh = encode([runs[place] for place in missing])
        vectors = like.new_empty(len(runs), self._size)
        vectors[_indices(missing, like)] = fresh
        if found:
            places, rows = (_indices(part, like) for part in zip(*found, strict=True))
            vectors[places] = self._table[rows]
        # what this call found stays: the oldest ones are others'
        kept = missing[: len(self._table) - len(found)]
        if kept:
            rows = _indices([self._take(runs[place]) for place in kept], like)
            self._table[rows] = fresh[: len(kept)]
        return vectors

    def _take(self, run: Run) -> int:
        """Return the row that a new run gets: a free one, or that of the run which was not used for longest."""
        assert self._table is not None
        row = len(self._rows)
        if row == len(self._table):
            _, row = self._rows.popitem(last=False)
        self._rows[run] = row
        return row


def _indices(values: Sequence[int], like: Tensor) -> Tensor:
    return to_device(like.device, np.array(values, np.int64))[0]


class LabelVectors(nn.Module):
    """An encoder of labels: the mean of all token rows in float32, projected where widths differ.

    Args:
        encoder: The encoder. Its attention is one of ``EncoderAttention``.
        encoder_size: Width of its rows.
        size: Width of a vector.
        projection: Whether a linear layer leads from the one to the other.
        vocabulary: Rows of its vocabulary.
        max_tokens: Tokens of the longest run.
        vllm_config: The configuration that the encoder was built in.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        encoder_size: int,
        size: int,
        projection: bool,
        vocabulary: int,
        max_tokens: int,
        vllm_config: VllmConfig,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = nn.Linear(encoder_size, size) if projection else None
        self.cache = VectorCache(size)
        self._size = size
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._vllm_config = vllm_config
        self._names = [layer.layer_name for layer in encoder.modules() if isinstance(layer, Attention)]

    def accepts(self, runs: Sequence[Run]) -> bool:
        """Return whether all runs can be encoded, or are vectors: an exception in a pooler ends the engine."""
        given = [vector for run in runs if (vector := run_vector(run)) is not None]
        # NaN is not below it, either
        if any(len(vector) != self._size or not (np.abs(vector) <= VECTOR_LIMIT).all() for vector in given):
            return False
        own = [run for run in runs if run_vector(run) is None] if given else runs
        lengths = np.fromiter(map(len, own), np.int64, len(own)) // np.dtype("<i4").itemsize
        if not len(own) or not lengths.all():
            return not len(own)
        tokens = np.frombuffer(b"".join(own), "<i4")
        return bool(lengths.max() <= self._max_tokens and tokens.min() >= 0 and tokens.max() < self._vocabulary)

    def forward(self, runs: Sequence[Run], like: Tensor) -> Tensor:
        """Return the vectors of runs that are different from each other, `[runs, size]`, with the dtype and on the device of ``like``."""
        found = [run_vector(run) for run in runs]
        given = {place: vector for place, vector in enumerate(found) if vector is not None}
        own = [place for place in range(len(runs)) if place not in given]
        if not given:
            return self._cached(runs, like)
        (sent,) = to_device(like.device, np.stack(list(given.values())))
        vectors = like.new_empty(len(runs), self._size)
        vectors[_indices(list(given), like)] = sent.to(like.dtype)
        if own:
            vectors[_indices(own, like)] = self._cached([runs[place] for place in own], like)
        return vectors

    def _cached(self, runs: Sequence[Run], like: Tensor) -> Tensor:
        return self.cache.get(runs, lambda missing: self.encode(missing, like), like)

    def reserve(self, like: Tensor) -> None:
        """Use all memory that requests may need here: the cache, and a full pass of the encoder."""
        self.cache.allocate(like)
        self.encode([np.zeros(self._max_tokens, "<i4").tobytes()], like)

    def encode(self, runs: Sequence[Run], like: Tensor) -> Tensor:
        """Return the vectors of runs, `[runs, size]`, without the cache."""
        tokens = [np.frombuffer(run, "<i4") for run in runs]
        lengths = np.array([len(run) for run in tokens])
        every = list(slices(lengths, PASSES[like.device.type]))
        vectors = torch.cat([self._encode_slice(slice_, tokens, like) for slice_ in every])
        # order[i] is the run of row i
        order = np.concatenate([slice_.chosen for slice_ in every])
        return vectors[_indices(np.argsort(order).tolist(), like)]

    def _encode_slice(self, slice_: Slice, tokens: Sequence[NDArray[np.int32]], like: Tensor) -> Tensor:
        """Return the vectors of a slice's labels, `[labels, size]`, of all labels' tokens."""
        parts = [tokens[number] for number in slice_.chosen]
        parts += parts[:1] * slice_.fillers
        lengths = np.array([len(part) for part in parts])
        ends = np.cumsum(lengths)
        total = int(ends[-1])
        rows = np.zeros((2, slice_.rows), np.int64)
        rows[0, :total] = np.concatenate(parts)
        rows[1, :total] = np.arange(total) - np.repeat(ends - lengths, lengths)
        starts = np.concatenate([[0], ends]).astype(np.int32)
        ids, positions, offsets, counts = to_device(like.device, *rows, starts, lengths)
        metadata: dict[str, Any] = dict.fromkeys(self._names, VarlenMetadata(offsets, int(lengths.max()), total))
        # the model runner's own pass is over when a pooler runs
        with set_forward_context(metadata, self._vllm_config, num_tokens=slice_.rows, slot_mapping={}):
            hidden = self.encoder(ids, positions)
        mean = torch.segment_reduce(hidden[:total].float(), "mean", lengths=counts, axis=0, unsafe=True).to(like.dtype)
        if self.projection is not None:
            # always the same number of rows
            mean = self.projection(nn.functional.pad(mean, (0, 0, 0, slice_.vectors - len(parts))))
        return mean[: len(slice_.chosen)]
