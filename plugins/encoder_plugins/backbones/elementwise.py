"""The elementwise pieces between GEMMs, and the one place where each is chosen: vLLM's and torch's, or ours.

Under vLLM's compilation torch's own formulas fuse with their neighbours, which a kernel of ours cannot; ours win only where
the benchmark on the GPU says so (see ``encoder_kernels``). On a CPU all of it is torch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.activation import GeluAndMul, get_act_fn

# names as transformers has them, of functions that vLLM computes alike
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")


def activation(name: str) -> nn.Module:
    """Return the activation that transformers calls ``name``, one of ``ACTIVATIONS``."""
    module: nn.Module = get_act_fn(name)
    return module


def gated(name: str) -> nn.Module:
    """Return ``act(first half) * second half`` over the last dimension for "gelu" (erf) or "gelu_tanh"."""
    module: nn.Module = GeluAndMul(approximate={"gelu": "none", "gelu_tanh": "tanh"}[name])
    return module


class LayerNorm(nn.Module):
    """Layer norm with the residual added before, statistics in float32."""

    def __init__(self, size: int, epsilon: float, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None
        self.epsilon = epsilon

    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Tensor:
        """Normalise `[tokens, size]`."""
        if residual is not None:
            hidden = hidden + residual
        return nn.functional.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.epsilon)
