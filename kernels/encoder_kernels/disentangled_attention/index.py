"""Which row of the relative embeddings a distance means."""

from __future__ import annotations

import torch


def log_bucket_index(buckets: int, max_distance: int) -> torch.Tensor:
    """Return DeBERTa v2's and v3's table: exact rows for near distances, logarithmically wider buckets for far ones.

    ``bucket(d) = d`` for ``|d| <= mid = buckets // 2``, beyond it ``sign(d) * (mid + ceil(log(|d| / mid) / log((max_distance - 1) / mid) *
    (mid - 1)))``; the row is ``clamp(bucket(d) + buckets, 0, 2 * buckets - 1)``. Computed once, on the host, in float32 as transformers
    computes it: in float64 some distances would fall into the neighbouring bucket.

    Args:
        buckets: ``position_buckets`` of the config.
        max_distance: ``max_relative_positions`` of the config, or ``max_position_embeddings`` where that is below 1.

    Returns:
        `[2 * limit + 1]` int32: the row of distance ``d`` at ``d + limit``; all distances beyond ``limit`` have its rows.

    Raises:
        ValueError: When there are fewer than 2 buckets, or ``max_distance - 1`` does not exceed the exact distances.

    Source: transformers' ``make_log_bucket_position``.
    """
    middle = buckets // 2
    if buckets < 2:
        raise ValueError(f"buckets: expected at least 2, found {buckets}")
    if max_distance - 1 <= middle:
        raise ValueError(f"max_distance: expected more than {middle + 1} with {buckets} buckets, found {max_distance}")
    # with one exact bucket all farther distances share the same one, so the last bucket is never reached
    last = buckets if middle > 1 else 1
    limit = max_distance
    while (positive := _log_buckets(limit, middle, max_distance))[-1] < last:
        limit *= 2
    limit = int(torch.searchsorted(positive, last))
    positive = positive[: limit + 1]
    rows = torch.cat([-positive.flip(0)[:-1], positive]) + buckets
    return rows.clamp(0, 2 * buckets - 1).to(torch.int32)


def _log_buckets(limit: int, middle: int, max_distance: int) -> torch.Tensor:
    """Return the bucket of each distance from 0 to ``limit``, int64."""
    distances = torch.arange(limit + 1)
    # transformers gives near distances any value that has a logarithm
    far = torch.where(distances < middle, torch.tensor(middle - 1).type_as(distances), distances)
    # not in torch's default type, which is that of the weights while a model is built
    scale = torch.log(torch.tensor((max_distance - 1) / middle, dtype=torch.float32))
    grown = torch.ceil(torch.log(far.float() / middle) / scale * (middle - 1)) + middle
    return torch.where(far <= middle, distances.type_as(grown), grown).to(torch.long)


def linear_index(span: int) -> torch.Tensor:
    """Return DeBERTa v1's table: one row for every distance, ``clamp(d + span, 0, 2 * span - 1)``.

    Args:
        span: ``max_relative_positions`` of the config, or ``max_position_embeddings`` where that is below 1.

    Returns:
        `[2 * span + 1]` int32: the row of distance ``d`` at ``d + span``.

    Raises:
        ValueError: When ``span`` is below 1.

    Source: transformers' ``build_relative_position`` of DeBERTa.
    """
    if span < 1:
        raise ValueError(f"span: expected at least 1, found {span}")
    return torch.arange(2 * span + 1, dtype=torch.int32).clamp(max=2 * span - 1)
