"""Whole passes of an encoder as CUDA graphs, attention included: one launch for a batch instead of several for every layer.

vLLM captures an encoder in pieces between its attention layers, for which it needs nothing to be known of a batch but its tokens. Small
batches take longer to launch that way than to compute. A whole pass can be captured where attention reads the sequences of the batch from
a buffer, and is launched for as many sequences, and as long ones, as a batch of so many tokens may have. Batches that have more, or longer
ones, are left to vLLM's pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import graph_capture
from vllm.forward_context import set_forward_context

# beyond, the GPU is busy for longer than the host needs to launch the pieces
MOST_TOKENS = 4096
# tokens of the longest sequence of a graph: kernels are launched for so many of every sequence, whether it has them or not
LONGEST = 512

Ints = NDArray[np.int32]


def sequences_of(tokens: int) -> int:
    """Return for how many sequences a graph of so many tokens is captured. Empty ones are launched, and nothing is computed of them."""
    # texts of 16 tokens, or of 32 in larger batches, where launching empty ones begins to cost
    return max(8, tokens // (16 if tokens <= 1024 else 32))


def padded_offsets(offsets: Ints, tokens: int) -> Ints | None:
    """Return the sequences of a graph that hold those of a batch; None where the batch does not fit.

    Rows of padding become sequences of their own: what they hold is as finite as every other row's then, which matters to
    layers that scale by the largest number of all rows.

    Args:
        offsets: `[sequences + 1]` int32: the first token of each sequence of the batch, and the end of the last.
        tokens: The graph's tokens.

    Returns:
        `[sequences_of(tokens) + 1]` int32, the last one is ``tokens``.
    """
    count, end = len(offsets) - 1, int(offsets[-1])
    longest = min(tokens, LONGEST)
    free = sequences_of(tokens) - count
    if free < 0 or free * longest < tokens - end or int(np.diff(offsets).max(initial=0)) > longest:
        return None
    found = np.empty(count + free + 1, np.int32)
    found[: count + 1] = offsets
    found[count + 1 :] = np.minimum(end + longest * np.arange(1, free + 1), tokens)
    return found


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured pass.

    Attributes:
        graph: The graph.
        offsets: `[sequences + 1]` int32 on the device: the sequences that it reads.
    """

    graph: torch.cuda.CUDAGraph
    offsets: Tensor


class WholeGraphs:
    """The captured passes of an encoder.

    Args:
        encoder: Takes token ids, positions and None; returns `[tokens, hidden]`.
        metadata: Gives the metadata of the attention layers, by name, for offsets on the device, the same on the host, and positions.
        vllm_config: The engine's configuration.

    Attributes:
        captured: The captured passes, by their tokens.
    """

    def __init__(
        self, encoder: Any, metadata: Callable[[Tensor, Ints, Tensor], dict[str, Any]], vllm_config: VllmConfig
    ) -> None:
        self._encoder = encoder
        self._metadata = metadata
        self._vllm_config = vllm_config
        self.captured: dict[int, Graph] = {}
        self._ids = self._positions = self._rows = torch.empty(0)

    @property
    def sizes(self) -> list[int]:
        """For how many tokens passes were captured."""
        return sorted(self.captured)

    @torch.inference_mode()
    def capture(self, input_ids: Tensor, positions: Tensor) -> None:
        """Capture a pass for each of the engine's graph sizes that is not too large.

        Args:
            input_ids: The buffer that holds the ids of every batch.
            positions: The buffer that holds the positions of every batch.
        """
        self._ids, self._positions = input_ids, positions
        sizes = self._vllm_config.compilation_config.cudagraph_capture_sizes or []
        pool = torch.cuda.graph_pool_handle()
        with graph_capture(device=input_ids.device):
            # the largest first: the others find room in its memory
            for tokens in sorted((size for size in sizes if size <= MOST_TOKENS), reverse=True):
                self.captured[tokens] = self._captured(tokens, pool)

    def _captured(self, tokens: int, pool: Any) -> Graph:
        longest = min(tokens, LONGEST)
        host = padded_offsets(np.asarray([0, longest], np.int32), tokens)
        if host is None:
            raise RuntimeError(f"a graph of {tokens} tokens does not hold them")
        ids, positions = self._ids[:tokens], self._positions[:tokens]
        offsets = torch.from_numpy(host).to(ids.device)
        graph = torch.cuda.CUDAGraph()
        with set_forward_context(self._metadata(offsets, host, positions), self._vllm_config, num_tokens=tokens):
            rows = self._encoder(ids, positions, None)
            if not len(self._rows):
                self._rows = torch.empty_like(rows)
            with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
                self._rows[:tokens].copy_(self._encoder(ids, positions, None))
        return Graph(graph, offsets)

    def fitting(self, offsets: Ints, input_ids: Tensor | None) -> Ints | None:
        """Return what to give to ``run`` for a batch; None where it has to be computed otherwise.

        Args:
            offsets: `[sequences + 1]` int32: the sequences of the batch.
            input_ids: `[tokens]`: its ids.
        """
        if input_ids is None or len(input_ids) not in self.captured or input_ids.data_ptr() != self._ids.data_ptr():
            return None
        return padded_offsets(offsets, len(input_ids))

    def run(self, padded: Ints, tokens: int) -> Tensor:
        """Return `[tokens, hidden]` of the batch that is in the buffers; the rows are those of the last batch only."""
        found = self.captured[tokens]
        host = torch.empty(len(padded), dtype=torch.int32, pin_memory=True)
        host.numpy()[:] = padded
        found.offsets.copy_(host, non_blocking=True)
        found.graph.replay()
        return self._rows[:tokens]
