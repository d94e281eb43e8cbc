"""The vectors of labels, by an encoder of their own: a bounded cache in front of it, and slices of one shape behind that.

A label comes as the token ids that the tokenizer made of it, with every request that uses it. So a request can be answered by any
engine at any time: what a cache lacks is encoded, and nothing that it has can be out of date or another label's, because the token
ids are the key.

A vector must not depend on the labels that are encoded with it. So each pass of the encoder has labels of one length only, as many as
fill it; where there are fewer, the first is there more than once. The shape of everything that is computed then follows from the label
alone, and so do the bits of its vector.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
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

# tokens of one pass of the encoder: a GPU is busy with the larger one, and a CPU soon done with the smaller one
SLICE_TOKENS = {"cpu": 128, "cuda": 2048}

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
        order = np.argsort(lengths, kind="stable")
        vectors: list[Tensor] = []
        for length in np.unique(lengths).tolist():
            same = order[lengths[order] == length]
            count = max(1, SLICE_TOKENS[like.device.type] // length)
            for begin in range(0, len(same), count):
                chosen = same[begin : begin + count]
                slice_ = np.repeat(tokens[chosen[0]][None].astype(np.int64), count, 0)
                slice_[: len(chosen)] = [tokens[number] for number in chosen]
                vectors.append(self._encode_slice(slice_, like)[: len(chosen)])
        # order[i] is the run of row i
        return torch.cat(vectors)[_indices(np.argsort(order).tolist(), like)]

    def _encode_slice(self, tokens: NDArray[np.int64], like: Tensor) -> Tensor:
        """Return the vectors of labels of one length, `[labels, size]` for ids `[labels, length]`."""
        count, length = tokens.shape
        total = count * length
        (ids,) = to_device(like.device, tokens.reshape(-1))
        positions = torch.arange(length, device=like.device).repeat(count)
        offsets = torch.arange(0, total + 1, length, dtype=torch.int32, device=like.device)
        metadata: dict[str, Any] = dict.fromkeys(self._names, VarlenMetadata(offsets, length, total))
        # the model runner's own pass is over when a pooler runs
        with set_forward_context(metadata, self._vllm_config, num_tokens=total, slot_mapping={}):
            hidden = self.encoder(ids, positions)
        mean: Tensor = hidden.view(count, length, -1).float().mean(1).to(like.dtype)
        if self.projection is None:
            return mean
        projected: Tensor = self.projection(mean)
        return projected
