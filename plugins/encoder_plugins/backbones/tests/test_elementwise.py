"""What a GPU or a CPU takes instead of vLLM's layers gives what those give; kernels for GPUs run in their CPU forms here."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from encoder_plugins.backbones.activations import ACTIVATIONS

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.backbones import elementwise

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _layers(world: None) -> Any:
    """vLLM's layers read a configuration when they are made."""
    from vllm.config import VllmConfig, set_current_vllm_config

    torch.manual_seed(7)
    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.mark.parametrize(("heads", "key_heads"), [(3, 3), (4, 2)])
@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_the_rotation_is_that_of_vllms_table(theta: float, heads: int, key_heads: int) -> None:
    head_size, tokens = 32, 50
    qkv = torch.randn(tokens, (heads + 2 * key_heads) * head_size)
    positions = torch.randint(0, 300, (tokens,))
    expected = elementwise.TableRotation(heads, key_heads, head_size, theta, 300)(positions, qkv.clone())
    found = elementwise.Rotation(key_heads, head_size, theta, 0.0, 0.0)(positions, qkv.clone())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)
    # the values pass as they are
    assert torch.equal(expected[2], qkv[:, -key_heads * head_size :])


@pytest.mark.parametrize("unit_offset", [False, True])
def test_the_norm_of_heads_is_that_of_vllms_layers(unit_offset: bool) -> None:
    import vllm._custom_ops
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    assert vllm._custom_ops
    heads, key_heads, head_size, tokens, epsilon = 4, 2, 32, 50, 0.1
    qkv, positions = torch.randn(tokens, (heads + 2 * key_heads) * head_size) * 3, torch.arange(tokens)
    norms = [(GemmaRMSNorm if unit_offset else RMSNorm)(head_size, epsilon) for _ in range(2)]
    for norm in norms:
        norm.weight.data.copy_(torch.randn(head_size))
    table = elementwise.TableRotation(heads, key_heads, head_size, 1e4, 300)
    ours = elementwise.Rotation(key_heads, head_size, 1e4, epsilon, 1.0 if unit_offset else 0.0)
    with torch.inference_mode():
        expected, found = table(positions, qkv.clone(), *norms), ours(positions, qkv.clone(), *norms)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=4e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_that_of_transformers(name: str) -> None:
    # vLLM's own compiled operations, which an engine has loaded by then
    import vllm._custom_ops
    from transformers.activations import ACT2FN

    assert vllm._custom_ops
    rows = torch.linspace(-6, 6, 500)
    torch.testing.assert_close(elementwise.activation(name)(rows), ACT2FN[name](rows))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_gate_is_that_of_vllms_layer(name: str) -> None:
    gate_up = torch.randn(50, 2 * 96)
    expected = elementwise.gated(name)
    assert not isinstance(expected, elementwise.Gate)
    torch.testing.assert_close(elementwise.Gate(tanh=name == "gelu_tanh")(gate_up), expected(gate_up))


def test_the_gelu_is_that_of_vllms_layer() -> None:
    inner = torch.randn(50, 96)
    expected = elementwise.activation("gelu")
    assert not isinstance(expected, elementwise.Gelu)
    torch.testing.assert_close(elementwise.Gelu()(inner), expected(inner))


def test_all_stay_whole_in_a_compiled_graph() -> None:
    rotation, gate = elementwise.Rotation(2, 32, 10_000.0, 1e-5, 1.0), elementwise.Gate(tanh=False)
    norm, gelu = elementwise.LayerNorm(32, 1e-5), elementwise.Gelu()

    def block(qkv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        query, key, value = rotation(positions, qkv * 2.0, norm, norm)
        rows: torch.Tensor = gate(gelu(query + key * value))
        return rows

    qkv, positions = torch.randn(9, 192), torch.arange(9)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(qkv, positions), block(qkv, positions))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_is_rounded_once(dtype: torch.dtype) -> None:
    hidden, branch = torch.randn(2, 50, 64).to(dtype).unbind(0)
    assert torch.equal(elementwise.add(hidden, branch), (hidden.float() + branch.float()).to(dtype))


# in 16 bits vLLM's layer rounds the row before and after it multiplies it, ours only after: they differ by up to three half units of the last bit
@pytest.mark.parametrize(
    ("dtype", "relative"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-6), (torch.float16, 2**-9)]
)
@pytest.mark.parametrize("unit_offset", [False, True])
def test_the_rms_norm_is_that_of_vllms_layers(dtype: torch.dtype, relative: float, unit_offset: bool) -> None:
    import vllm._custom_ops
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    assert vllm._custom_ops
    norm = elementwise.rms_norm(96, 1e-5, unit_offset=unit_offset).to(dtype)
    assert isinstance(norm, elementwise.RmsNorm)
    expected = (GemmaRMSNorm if unit_offset else RMSNorm)(96, 1e-5).to(dtype)
    assert torch.equal(norm.weight, expected.weight)
    norm.weight.data = expected.weight.data = torch.rand(96).to(dtype) * 3 - 1
    hidden, residual = torch.randn(2, 50, 96).to(dtype).unbind(0)
    tolerance: Any = {"rtol": relative, "atol": relative / 4}
    torch.testing.assert_close(norm(hidden), expected(hidden), **tolerance)
    # the sum is rounded before it is normalised, as in transformers; vLLM's layers round it behind that
    normed, total = norm(hidden, residual)
    assert torch.equal(total, hidden + residual)
    torch.testing.assert_close(normed, expected(total), **tolerance)
    # queries are a part of a wider row, and have a dimension more
    queries = torch.randn(50, 300).to(dtype)[:, :192].view(50, 2, 96)
    torch.testing.assert_close(norm(queries), expected(queries), **tolerance)
