"""The elementwise pieces between GEMMs, and the one place where each is chosen: vLLM's and torch's, or a kernel of ours.

Under vLLM's compilation torch's own formulas fuse with their neighbours, which a kernel cannot; a kernel is here only
where the benchmark on the GPU says so (``kernels/BENCHMARKS.md``): for the gate and for the rotation. Both are operations
that the compiler leaves whole, so that they are in its CUDA graphs like any other. On a CPU nothing is compiled, and all of
it is vLLM's and torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.activation import GeluAndMul, get_act_fn
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.platforms import current_platform
from vllm.utils.torch_utils import direct_register_custom_op

from encoder_kernels.gated_linear_unit import gated_linear_unit
from encoder_kernels.rotary import rotary

# operations live as long as their library
_LIBRARY = torch.library.Library("encoder_plugins", "FRAGMENT")  # type: ignore[no-untyped-call]


def _gate(gate_up: torch.Tensor, tanh: bool) -> torch.Tensor:
    return gated_linear_unit(gate_up, "gelu_tanh" if tanh else "gelu")


def _gate_shape(gate_up: torch.Tensor, tanh: bool) -> torch.Tensor:
    del tanh
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


def _rotate(qkv: torch.Tensor, positions: torch.Tensor, inverse_frequency: torch.Tensor, heads: int) -> None:
    query, key, _ = qkv.view(qkv.shape[0], 3, heads, -1).unbind(1)  # [tokens, heads, head_size] each
    rotary(query, key, positions, inverse_frequency)


def _rotate_shape(qkv: torch.Tensor, positions: torch.Tensor, inverse_frequency: torch.Tensor, heads: int) -> None:
    del qkv, positions, inverse_frequency, heads


direct_register_custom_op("gated_gelu", _gate, fake_impl=_gate_shape, target_lib=_LIBRARY)
# the whole of queries, keys and values is named as changed: of a part the compiler would make a copy
direct_register_custom_op("rotate", _rotate, mutates_args=["qkv"], fake_impl=_rotate_shape, target_lib=_LIBRARY)


def activation(name: str) -> nn.Module:
    """Return the activation that transformers calls ``name``, one of ``activations.ACTIVATIONS``."""
    module: nn.Module = get_act_fn(name)
    return module


def gated(name: str) -> nn.Module:
    """Return ``act(first half) * second half`` over the last dimension for "gelu" (erf) or "gelu_tanh"."""
    approximate = {"gelu": "none", "gelu_tanh": "tanh"}[name]
    if current_platform.is_cuda():
        return Gate(tanh=approximate == "tanh")
    module: nn.Module = GeluAndMul(approximate=approximate)
    return module


class Gate(nn.Module):
    """The gate with the exact GELU or its tanh form, by our kernel."""

    def __init__(self, *, tanh: bool) -> None:
        super().__init__()
        self.tanh = tanh

    def forward(self, gate_up: Tensor) -> Tensor:
        """Return `[tokens, size]` for `[tokens, 2 * size]`."""
        rows: Tensor = torch.ops.encoder_plugins.gated_gelu(gate_up, self.tanh)
        return rows


def add(hidden: Tensor, branch: Tensor) -> Tensor:
    """Return ``hidden + branch``, of which torch's compiler makes one kernel with the norm behind it.

    In 16 bits it would otherwise give the sum to the GEMM before it, and copy ``hidden`` for that. On a CPU, where nothing is
    compiled, the steps of that would be three more passes over all rows; torch's own sum is rounded once, too.
    """
    if current_platform.is_cpu():
        return hidden + branch
    return (hidden.float() + branch.float()).to(hidden.dtype)


def rotation(heads: int, head_size: int, *, theta: float, positions: int) -> nn.Module:
    """Return a module that takes positions `[tokens]` and `[tokens, 3 * heads * head_size]`, and gives queries, keys, and values.

    Args:
        heads: Heads on this rank, of queries as of keys.
        head_size: Width of a head.
        theta: The rotary base.
        positions: Positions that a table must have.
    """
    if current_platform.is_cuda():
        return Rotation(heads, head_size, theta)
    return TableRotation(head_size, theta, positions)


class Rotation(nn.Module):
    """Rotates queries and keys where they are, by our kernel."""

    def __init__(self, heads: int, head_size: int, theta: float) -> None:
        super().__init__()
        self.heads = heads
        # in float32, as transformers has it
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        self.register_buffer("inverse_frequency", 1.0 / theta**exponents, persistent=False)

    def forward(self, positions: Tensor, qkv: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, `[tokens, heads * head_size]` each."""
        torch.ops.encoder_plugins.rotate(qkv, positions, self.inverse_frequency, self.heads)
        return qkv.chunk(3, dim=-1)


class TableRotation(nn.Module):
    """Rotates by vLLM's layer, which has a table of angles."""

    def __init__(self, head_size: int, theta: float, positions: int) -> None:
        super().__init__()
        parameters = {"rope_type": "default", "rope_theta": theta}
        self.layer = get_rope(head_size, max_position=positions, rope_parameters=parameters)

    def forward(self, positions: Tensor, qkv: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, `[tokens, heads * head_size]` each."""
        query, key, value = qkv.chunk(3, dim=-1)
        return (*self.layer(positions, query, key), value)


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


def rms_norm(size: int, epsilon: float, *, unit_offset: bool = False) -> nn.Module:
    """Return an RMS norm that takes `[…, size]`, and with a residual to add before gives the sum, too.

    Args:
        size: Width of a row.
        epsilon: What is added to the mean of the squares.
        unit_offset: Whether a row is multiplied by one more than the weights, as Gemma's are.
    """
    if current_platform.is_cpu():
        return RmsNorm(size, epsilon, unit_offset=unit_offset)
    module: nn.Module = GemmaRMSNorm(size, epsilon) if unit_offset else RMSNorm(size, epsilon)
    return module


class RmsNorm(nn.Module):
    """The RMS norm by the kernel of vLLM's CPU build. vLLM's layers do it there in seven steps of torch, each over all rows."""

    def __init__(self, size: int, epsilon: float, *, unit_offset: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if unit_offset else torch.ones(size))
        self.epsilon = epsilon
        self.unit_offset = unit_offset

    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Normalise `[…, size]`, in float32; with a residual, return the normalised sum and the sum, rounded first as in transformers."""
        if residual is not None:
            hidden = hidden + residual
        # the kernel wants rows and weights of one dtype, and one more than a weight is not a number of 16 bits
        rows, weight = (hidden.float(), self.weight.float() + 1) if self.unit_offset else (hidden, self.weight)
        rows = rows.contiguous()
        normed = torch.empty_like(rows)
        torch.ops._C.rms_norm(normed, rows, weight, self.epsilon)
        normed = normed.to(hidden.dtype)
        return normed if residual is None else (normed, hidden)
