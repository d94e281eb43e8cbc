"""The probability of a logit, the same wherever the logit stands."""

from __future__ import annotations

import torch

# a multiple of the values that torch computes at once on any CPU
_VECTOR = 128


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return the sigmoid of float32 logits of any shape, to the last bit the same for equal ones: ties and thresholds depend on that.

    torch computes the last values of a tensor, which do not fill a vector register, in another way than the others. Few of those of
    a library's table are among its last.
    """
    flat = logits.reshape(-1)
    return torch.sigmoid(torch.nn.functional.pad(flat, (0, -flat.numel() % _VECTOR)))[: flat.numel()].view(logits.shape)
