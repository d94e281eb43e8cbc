"""One vector per text in the engine: the mean of its rows, and the Dense modules behind it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_plugins.backbones import token_marks
from encoder_plugins.backbones.marked_pooler import MarkedPooler, requests_of
from encoder_plugins.families.retrieval.dense_layers import DenseChain


class MeanPooler(MarkedPooler):
    """Answers each request with a float32 vector `[size]`, or with `[texts, size]` where its tokens are marked.

    The mean is taken over all tokens of a text, in float32, then the chain is applied. Each text is summed by itself and in order, so
    that its vector does not depend on the batch; vLLM's own adds all texts' rows at once, on a GPU in any order.

    Vectors have length 1 unless a request sets ``use_activation`` to false, as with vLLM's own poolers.

    Args:
        chain: The Dense modules.
    """

    task = "embed"

    def __init__(self, chain: DenseChain) -> None:
        super().__init__()
        self.projector = chain

    @torch.inference_mode()
    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor]:
        """Return one tensor for each request."""
        requests = requests_of(pooling_metadata)
        lengths = [request.texts() for request in requests]
        vectors = self.projector(_means(hidden_states, np.concatenate(lengths)))
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
    on_host = torch.from_numpy(lengths.astype(np.int64))
    if hidden.is_cuda:
        on_host = on_host.pin_memory()
    rows = hidden[: int(lengths.sum())].float()
    on_device = on_host.to(rows.device, non_blocking=True)
    return torch.segment_reduce(rows, "mean", lengths=on_device, axis=0, unsafe=True)
