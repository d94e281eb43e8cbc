"""Which of an operation's two forms runs: the Triton kernel or the PyTorch reference."""

from __future__ import annotations

import os

import torch

# Triton reads the variable when it is imported, so that a later change has no effect there either
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def runs_triton(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is where the Triton kernels run: on a GPU, or anywhere under Triton's interpreter."""
    return INTERPRETED or tensor.is_cuda
