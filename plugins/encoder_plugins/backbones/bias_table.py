"""The learned bias of buckets of distances, which all layers of a model share."""

from __future__ import annotations

from torch import Tensor, nn
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

from encoder_kernels.relative_bias_attention import t5_bias


class BiasTable(nn.Module):
    """The bias of each bucket and head. Every rank has the whole table and uses its own heads' columns.

    Args:
        buckets: Rows of the table.
        heads: Attention heads of all ranks.
        max_distance: The distance from which on all share the last bucket.
    """

    def __init__(self, buckets: int, heads: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.embeddings = nn.Embedding(buckets, heads)

    def by_distance(self) -> Tensor:
        """Return `[heads of this rank, 2 * limit + 1]` float32."""
        ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        heads = self.embeddings.embedding_dim // ranks
        return t5_bias(self.embeddings.weight[:, rank * heads : (rank + 1) * heads], max_distance=self.max_distance)
