"""Pooled tensors in a form that vLLM can send from the process of an engine.

vLLM sends the bytes of a tensor, `tensor.flatten().contiguous().view(uint8)`. That raises where a tensor of one number has another
stride than 1 (a column of a matrix with one row, say), which PyTorch counts as contiguous; and it raises in a thread
that nobody watches, so that the request, and every later one, is never answered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def sendable(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy where vLLM could not send it.

    Raises:
        TypeError: The tensor is sparse or has no data. In a pooler it ends the engine, and with it the server.
    """
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise TypeError(f"a pooled tensor of {tensor.layout} on {tensor.device} cannot be sent to a server")
    tensor = tensor.detach()
    if tensor.is_contiguous() and (tensor.ndim == 0 or tensor.stride(-1) == 1):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def keep_sendable(pooler: nn.Module) -> None:
    """Let a pooler return tensors that vLLM can send, whatever it computes."""
    pooler.register_forward_hook(_checked)


def _checked(_: nn.Module, __: Any, pooled: Any) -> Any:
    if isinstance(pooled, Tensor):
        return sendable(pooled)
    if isinstance(pooled, list):
        return [sendable(one) if isinstance(one, Tensor) else one for one in pooled]
    return pooled
