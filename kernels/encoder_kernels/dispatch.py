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
def multiprocessors(device: torch.device) -> tuple[int, int]:
    """Return the bytes of shared memory of a GPU's multiprocessor, of which a program can have all but one KiB, and how many there are."""
    found = torch.cuda.get_device_properties(device)
    return found.shared_memory_per_multiprocessor, found.multi_processor_count
