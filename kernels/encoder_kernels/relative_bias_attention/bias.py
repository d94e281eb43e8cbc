"""T5's bias by distance, laid out so that a kernel needs no bucket arithmetic."""

from __future__ import annotations

import math

import torch


def t5_bias(table: torch.Tensor, *, max_distance: int = 128) -> torch.Tensor:
    """Return the bias of every distance, from the embedding of the buckets.

    Of the buckets one half is for keys behind the query (or at it), the other for those ahead. In each half the first half is one distance
    each and the rest grows logarithmically up to ``max_distance``. Buckets are computed once, on the host, in float32 as transformers computes
    them: in float64 some distances would fall into the neighbouring bucket.

    Args:
        table: `[buckets, heads]`: the weight of ``relative_attention_bias``.
        max_distance: ``relative_attention_max_distance`` of the config.

    Returns:
        `[heads, 2 * limit + 1]` float32 on ``table``'s device: the bias of ``key - query`` at ``key - query + limit``; every distance beyond
        ``limit`` has its bias.

    Raises:
        ValueError: When there are fewer than 4 buckets, an odd number of them, or ``max_distance`` is no farther than the exact ones.

    Source: transformers' ``MT5Attention._relative_position_bucket``, bidirectional.
    """
    if table.dim() != 2 or table.shape[0] < 4 or table.shape[0] % 2:
        raise ValueError(
            f"table: expected [buckets, heads] with an even number of at least 4 buckets, found {tuple(table.shape)}"
        )
    half = table.shape[0] // 2
    exact = half // 2
    if max_distance <= exact:
        raise ValueError(f"max_distance: expected more than {exact}, found {max_distance}")
    distances = torch.arange(max_distance + 1)
    grown = exact + (torch.log(distances.float() / exact) / math.log(max_distance / exact) * (half - exact)).to(
        torch.long
    )
    buckets = torch.where(distances < exact, distances, grown.clamp(max=half - 1))
    rows = torch.cat([buckets.flip(0)[:-1], buckets[:1], half + buckets[1:]])
    return table.detach().float()[rows.to(table.device)].t().contiguous()
