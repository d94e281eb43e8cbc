"""Fewer rows for a document: rows that are alike become their mean, as ``HierarchicalTokenPooling`` of sentence-transformers 6.2 does it.

Ward's linkage of the cosine distances, with scipy's numbers and merges (``ward``). The first row is kept, since
it is that of the whole text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# first rows that are kept as they are
PROTECTED = 1
MOST_FACTOR = 1024


def pooled(rows: Tensor, factor: float) -> Tensor:
    """Return about ``1 / factor`` of a document's rows.

    Args:
        rows: `[rows, dimensions]` float32 of length 1, at least one.
        factor: 1 or more; with 1, or where a row is left, the rows stay those they are.

    Returns:
        `[1 + max(1, (rows - 1) // factor), dimensions]` at most, of length 1.
    """
    import numpy as np
    import torch
    from scipy.cluster.hierarchy import fcluster

    from encoder_plugins.families.retrieval import ward

    others = rows[PROTECTED:]
    clusters = max(int(len(others) // factor), 1)
    if clusters < len(others):
        distances = (1 - torch.mm(others, others.t())).clamp_(0, 2).numpy()
        labels = fcluster(ward.linkage(distances), t=clusters, criterion="maxclust")
        # ties can leave numbers out
        _, owners = np.unique(labels, return_inverse=True)
        owner = torch.from_numpy(owners.reshape(-1).astype(np.int64))
        sums = torch.zeros(int(owner.max()) + 1, rows.shape[1]).index_add_(0, owner, others)
        means = sums / torch.bincount(owner)[:, None]
        rows = torch.cat([rows[:PROTECTED], means])
    return torch.nn.functional.normalize(rows, dim=-1)


def microseconds(rows: int) -> int:
    """Return about how long it takes for a document."""
    return 500 + rows * rows // 10
