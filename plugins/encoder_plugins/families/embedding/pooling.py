"""One vector per text in the engine: the mean of its rows or one of them, and the Dense modules behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_plugins.backbones import token_marks
from encoder_plugins.backbones.marked_pooler import MarkedPooler, requests_of
from encoder_plugins.families.retrieval.dense_layers import DenseChain


class SingleVectorPooler(MarkedPooler):
    """Answers each request with a float32 vector `[size]`, or with `[texts, size]` where its tokens are marked.

    A text's rows become a vector in float32, to which the chain is applied. For a mean each text is summed by itself and in order, so
    that its vector does not depend on the batch; vLLM's own adds all texts' rows at once, on a GPU in any order.

    Vectors have length 1 unless a request sets ``use_activation`` to false, as with vLLM's own poolers.

    Args:
        pooling: How rows become a vector: ``MEAN`` of all tokens with the prompt, ``CLS`` for the first row, ``LAST`` for the last.
        chain: The Dense modules.

    Raises:
        ValueError: There is no such pooling.
    """

    task = "embed"

    def __init__(self, pooling: str, chain: DenseChain) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"seq_pooling_type is {pooling}; expected one of {', '.join(POOLINGS)}")
        self.pooled = POOLINGS[pooling]
        self.projector = chain

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor for each request."""
        requests = requests_of(pooling_metadata)
        lengths = [request.texts() for request in requests]
        vectors = self.projector(self.pooled(hidden_states, np.concatenate(lengths)))
        found: list[Tensor] = []
        each = torch.split(vectors, list(map(len, lengths)))
        for request, params, own in zip(requests, pooling_metadata.pooling_params, each, strict=True):
            if params.dimensions is not None:
                own = own[:, : params.dimensions]
            if params.use_activation:
                own = torch.nn.functional.normalize(own, dim=-1)
            found.append(own if token_marks.KEY in (request.extra or {}) else own[0])
        return found


def _means(hidden: Tensor, lengths: token_marks.Ints) -> Tensor:
    """Return `[texts, hidden]` float32 for `[tokens, hidden]`, behind which rows of padding may come."""
    rows = hidden[: int(lengths.sum())].float()
    return torch.segment_reduce(rows, "mean", lengths=_on(rows, lengths), axis=0, unsafe=True)


def _first_rows(hidden: Tensor, lengths: token_marks.Ints) -> Tensor:
    """As ``_means``, of each text's first token."""
    return hidden[_on(hidden, np.cumsum(lengths) - lengths)].float()


def _last_rows(hidden: Tensor, lengths: token_marks.Ints) -> Tensor:
    """As ``_means``, of each text's last token."""
    return hidden[_on(hidden, np.cumsum(lengths) - 1)].float()


def _on(rows: Tensor, numbers: NDArray[Any]) -> Tensor:
    """Return numbers as int64 where the rows are, without waiting for the device."""
    on_host = torch.from_numpy(numbers.astype(np.int64))
    if rows.is_cuda:
        on_host = on_host.pin_memory()
    return on_host.to(rows.device, non_blocking=True)


# by vLLM's names
POOLINGS: Mapping[str, Callable[[Tensor, token_marks.Ints], Tensor]] = MappingProxyType(
    {"MEAN": _means, "CLS": _first_rows, "LAST": _last_rows}
)
