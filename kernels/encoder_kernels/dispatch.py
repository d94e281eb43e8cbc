"""Which of an operation's two forms runs, the Triton kernel or the PyTorch reference, and what the kernel's launch depends on."""

from __future__ import annotations

import functools
import os

import torch

# Triton reads the variable when it is imported, so that a later change has no effect there either
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def runs_triton(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is where the Triton kernels run: on a GPU, or anywhere under Triton's interpreter."""
    return INTERPRETED or tensor.is_cuda


@functools.lru_cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory of a GPU's multiprocessor, of which a program can have all but one KiB; 0 elsewhere."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor)


@functools.lru_cache
def multiprocessors(device: torch.device) -> int | None:
    """Return how many multiprocessors a GPU has; None elsewhere."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else None
