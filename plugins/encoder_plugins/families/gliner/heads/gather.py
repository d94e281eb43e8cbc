"""The token rows that a plan names, gathered on the device: one copy of indices, one gather for all groups."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder_plugins.families.gliner.heads.row_groups import RowPlan


class DeviceRows:
    """A plan's indices on the device, and what else a head has for each text, copied there at once.

    Attributes:
        offsets: `[texts + 1]` int32 for each group: where each text's rows begin in the group, and the end of the last.
        extra: The arrays that were given beside the plan, as tensors of the same type.
    """

    def __init__(self, plan: RowPlan, device: torch.device, **extra: NDArray[np.int32] | NDArray[np.float32]) -> None:
        self._plan = plan
        groups = plan.groups
        parts = [
            plan.rows,
            *(group.offsets for group in groups.values()),
            *(group.missing for group in groups.values()),
            *(array.view(np.int32) for array in extra.values()),
        ]
        sizes = [len(part) for part in parts]
        host = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
        np.concatenate(parts, out=host.numpy())
        self._rows, *rest = torch.split(host.to(device, non_blocking=True), sizes)
        count = len(groups)
        self.offsets = dict(zip(groups, rest, strict=False))
        self._missing = dict(zip(groups, rest[count:], strict=False))
        self.extra = {
            name: tensor.view(torch.float32) if array.dtype == np.float32 else tensor
            for (name, array), tensor in zip(extra.items(), rest[2 * count :], strict=True)
        }

    def gather(self, hidden: Tensor) -> Tensor:
        """Return the rows of all groups, `[rows, width]`, of `[tokens, width]`."""
        return hidden.index_select(0, self._rows)

    def split(self, gathered: Tensor) -> dict[str, Tensor]:
        """Return each group's rows of `[rows, width]`; zeros for rows that have no token."""
        found = {}
        for name, group in self._plan.groups.items():
            rows = gathered[group.first : group.first + group.total]
            # index_fill takes 64-bit indices only
            found[name] = rows.index_fill(0, self._missing[name].long(), 0.0) if len(group.missing) else rows
        return found
