"""The elementwise pieces between GEMMs, and the one place where each is chosen: vLLM's and torch's, or a kernel of ours.

Under vLLM's compilation torch's own formulas fuse with their neighbours, which a kernel cannot; a kernel is here only
where the benchmark on the GPU says so (``kernels/BENCHMARKS.md``): for the exact GELU, for the gate and for the rotation, which
also norms heads, since a profile of LFM2 has several kernels in that place (``docs/benchmarks/requests.md``). They are operations that the compiler leaves whole, so that they are in its CUDA graphs like any
other. On a CPU nothing is compiled, and all of it is vLLM's and torch's.
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
from encoder_kernels.gelu import gelu
from encoder_kernels.rotary import HeadNorm, rotary

# operations live as long as their library
_LIBRARY = torch.library.Library("encoder_plugins", "FRAGMENT")  # type: ignore[no-untyped-call]


def _gelu(rows: torch.Tensor) -> torch.Tensor:
    return gelu(rows)


def _gelu_shape(rows: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(rows)


def _gate(gate_up: torch.Tensor, tanh: bool) -> torch.Tensor:
    return gated_linear_unit(gate_up, "gelu_tanh" if tanh else "gelu")


def _gate_shape(gate_up: torch.Tensor, tanh: bool) -> torch.Tensor:
    del tanh
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


def _rotate(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    inverse_frequency: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    key_heads: int,
    epsilon: float,
    offset: float,
) -> None:
    heads = qkv.view(qkv.shape[0], -1, 2 * inverse_frequency.shape[0])  # [tokens, heads + 2 * key_heads, head_size]
    query, key, _ = torch.split(heads, [heads.shape[1] - 2 * key_heads, key_heads, key_heads], 1)
    norm = None
    if query_weight is not None and key_weight is not None:
        norm = HeadNorm(query_weight, key_weight, epsilon, offset)
    rotary(query, key, positions, inverse_frequency, norm)


def _rotate_shape(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    inverse_frequency: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    key_heads: int,
    epsilon: float,
    offset: float,
) -> None:
    del qkv, positions, inverse_frequency, query_weight, key_weight, key_heads, epsilon, offset


direct_register_custom_op("gelu", _gelu, fake_impl=_gelu_shape, target_lib=_LIBRARY)
direct_register_custom_op("gated_gelu", _gate, fake_impl=_gate_shape, target_lib=_LIBRARY)
# the whole of queries, keys and values is named as changed: of a part the compiler would make a copy
direct_register_custom_op("rotate", _rotate, mutates_args=["qkv"], fake_impl=_rotate_shape, target_lib=_LIBRARY)


def activation(name: str) -> nn.Module:
    """Return the activation that transformers calls ``name``, one of ``activations.ACTIVATIONS``."""
    if name == "gelu" and current_platform.is_cuda():
        return Gelu()
    module: nn.Module = get_act_fn(name)
    return module


def gated(name: str) -> nn.Module:
    """Return ``act(first half) * second half`` over the last dimension for "gelu" (erf) or "gelu_tanh"."""
    approximate = {"gelu": "none", "gelu_tanh": "tanh"}[name]
    if current_platform.is_cuda():
        return Gate(tanh=approximate == "tanh")
    module: nn.Module = GeluAndMul(approximate=approximate)
    return module


class Gelu(nn.Module):
    """The exact GELU by our kernel."""

    def forward(self, inner: Tensor) -> Tensor:
        """Return `[tokens, size]` for `[tokens, size]`."""
        rows: Tensor = torch.ops.encoder_plugins.gelu(inner)
        return rows


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


def rotation(
    heads: int,
    head_size: int,
    *,
    key_heads: int | None = None,
    theta: float,
    positions: int,
    epsilon: float | None = None,
    unit_offset: bool = False,
) -> Rotation | TableRotation:
    """Return a module that takes queries, keys and values in one tensor, and gives them rotated, and normalised before.

    Args:
        heads: Heads of queries on this rank.
        head_size: Width of a head.
        key_heads: Heads of keys on this rank; by default as many.
        theta: The rotary base.
        positions: Positions that a table must have.
        epsilon: That of the norm before the rotation; None for no norm.
        unit_offset: Whether a row is multiplied by one more than the norm's weights.
    """
    key_heads = heads if key_heads is None else key_heads
    if current_platform.is_cuda():
        return Rotation(key_heads, head_size, theta, epsilon or 0.0, 1.0 if unit_offset else 0.0)
    return TableRotation(heads, key_heads, head_size, theta, positions)


class Rotation(nn.Module):
    """Normalises and rotates queries and keys where they are, by our kernel."""

    def __init__(self, key_heads: int, head_size: int, theta: float, epsilon: float, offset: float) -> None:
        super().__init__()
        self.key_heads = key_heads
        self.key_width = key_heads * head_size
        self.epsilon = epsilon
        self.offset = offset
        # in float32, as transformers has it
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        self.register_buffer("inverse_frequency", 1.0 / theta**exponents, persistent=False)

    def forward(
        self, positions: Tensor, qkv: Tensor, query_norm: nn.Module | None = None, key_norm: nn.Module | None = None
    ) -> tuple[Tensor, ...]:
        """Return queries `[tokens, heads * head_size]`, keys and values `[tokens, key_heads * head_size]` each.

        Args:
            positions: `[tokens]`.
            qkv: `[tokens, (heads + 2 * key_heads) * head_size]`.
            query_norm: The norm of queries' heads, of which the weights are read; None for none.
            key_norm: That of keys' heads.
        """
        weights = [None if norm is None else norm.weight for norm in (query_norm, key_norm)]
        torch.ops.encoder_plugins.rotate(
            qkv, positions, self.inverse_frequency, *weights, self.key_heads, self.epsilon, self.offset
        )
        return torch.split(qkv, [qkv.shape[1] - 2 * self.key_width, self.key_width, self.key_width], dim=-1)


class TableRotation(nn.Module):
    """Normalises by the norms that it is given, and rotates by vLLM's layer, which has a table of angles."""

    def __init__(self, heads: int, key_heads: int, head_size: int, theta: float, positions: int) -> None:
        super().__init__()
        parameters = {"rope_type": "default", "rope_theta": theta}
        self.head_size = head_size
        self.widths = [heads * head_size, key_heads * head_size, key_heads * head_size]
        self.layer = get_rope(head_size, max_position=positions, rope_parameters=parameters)

    def forward(
        self, positions: Tensor, qkv: Tensor, query_norm: nn.Module | None = None, key_norm: nn.Module | None = None
    ) -> tuple[Tensor, ...]:
        """Return and take what ``Rotation`` does."""
        query, key, value = torch.split(qkv, self.widths, dim=-1)
        query, key = self._normed(query, query_norm), self._normed(key, key_norm)
        return (*self.layer(positions, query, key), value)

    def _normed(self, rows: Tensor, norm: nn.Module | None) -> Tensor:
        """Normalise each head; `[tokens, heads * head_size]`, as the rotary kernel of vLLM's CPU build needs them."""
        if norm is None:
            return rows
        normed: Tensor = norm(rows.reshape(-1, self.head_size))
        return normed.view(rows.shape)


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
