"""Which row of the relative embeddings a distance means."""

from __future__ import annotations

import math

import torch


def log_bucket_index(buckets: int, max_distance: int) -> torch.Tensor:
    """Return DeBERTa v2's and v3's table: exact rows for near distances, logarithmically wider buckets for far ones.

    ``bucket(d) = d`` for ``|d| <= mid = buckets // 2``, beyond it ``sign(d) * (mid + ceil(log(|d| / mid) / log((max_distance - 1) / mid) *
    (mid - 1)))``; the row is ``clamp(bucket(d) + buckets, 0, 2 * buckets - 1)``. Computed in float64, once, on the host.

    Args:
        buckets: ``position_buckets`` of the config.
        max_distance: ``max_relative_positions`` of the config, or ``max_position_embeddings`` where that is below 1.

    Returns:
        `[2 * limit + 1]` int32: the row of distance ``d`` at ``d + limit``; all distances beyond ``limit`` have its rows.

    Raises:
        ValueError: When there are fewer than 2 buckets, or ``max_distance - 1`` is no farther than the exact ones.

    Source: transformers' ``make_log_bucket_position``.
    """
    middle = buckets // 2
    if buckets < 2:
        raise ValueError(f"buckets: expected at least 2, found {buckets}")
    if max_distance - 1 <= middle:
        raise ValueError(f"max_distance: expected more than {middle + 1} with {buckets} buckets, found {max_distance}")
    width = math.log((max_distance - 1) / middle)

    def bucket(distance: int) -> int:
        if distance <= middle:
            return distance
        return middle + math.ceil(math.log(distance / middle) / width * (middle - 1))

    positive = [0]
    # with one exact bucket (middle 1) all farther ones are one
    farthest = middle + 1 if middle == 1 else None
    while positive[-1] < buckets and len(positive) - 1 != farthest:
        positive.append(bucket(len(positive)))
    last = 2 * buckets - 1
    rows = [max(buckets - b, 0) for b in reversed(positive[1:])] + [min(buckets + b, last) for b in positive]
    return torch.tensor(rows, dtype=torch.int32)


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
