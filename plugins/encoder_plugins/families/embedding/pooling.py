"""One vector per text in the engine: the mean of its rows, and the Dense modules behind it."""

from __future__ import annotations

import torch
from torch import Tensor
from vllm.model_executor.layers.pooler.activations import PoolerNormalize
from vllm.model_executor.layers.pooler.seqwise import EmbeddingPoolerHead, SequencePooler, SequencePoolingMethod
from vllm.v1.pool.metadata import PoolingMetadata

from encoder_plugins.families.retrieval.dense_layers import DenseChain


class MeanOfRows(SequencePoolingMethod):  # type: ignore[misc]
    """The mean over all tokens of each text, in float32.

    Each text is summed by itself and in order, so that its vector does not depend on the batch; vLLM's own adds all texts'
    rows at once, on a GPU in any order.
    """

    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> Tensor:
        """Return `[texts, hidden]` for `[tokens, hidden]`."""
        lengths = pooling_metadata.get_pooling_cursor().num_scheduled_tokens_cpu.long()
        # rows behind the texts are padding
        rows = hidden_states[: int(lengths.sum())].float()
        on_device = lengths.to(rows.device, non_blocking=True)
        return torch.segment_reduce(rows, "mean", lengths=on_device, axis=0, unsafe=True)


def mean_pooler(chain: DenseChain) -> SequencePooler:
    """Return a pooler that answers with the chain's output for the mean of each text's rows.

    Vectors have length 1 unless a request sets ``use_activation`` to false, as with vLLM's own poolers.
    """
    head = EmbeddingPoolerHead(projector=chain, head_dtype=torch.float32, activation=PoolerNormalize())
    return SequencePooler(pooling=MeanOfRows(), head=head)
