"""Every kernel is compiled for GPUs that this machine need not have, with the launch settings that it has there."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from encoder_kernels import dispatch
from encoder_kernels.bidirectional_lstm import bidirectional_lstm
from encoder_kernels.disentangled_attention import disentangled_attention
from encoder_kernels.gated_linear_unit import gated_linear_unit
from encoder_kernels.gelu import gelu
from encoder_kernels.relative_bias_attention import relative_bias_attention
from encoder_kernels.rotary import HeadNorm, rotary
from encoder_kernels.span_scores import span_logits, span_scores
from encoder_kernels.tests.test_forms import OPERATIONS
from encoder_kernels.token_scores import Layers, token_scores

pytestmark = [
    pytest.mark.skipif(dispatch.INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.timeout(600),
]


@dataclass
class CompileOnly:
    """A driver of Triton's for a GPU that compiles kernels and launches none.

    Attributes:
        capability: of the GPU, times ten.
        shared: KiB of shared memory of a multiprocessor. A program can have all but one.
        multiprocessors: how many it has.
        compiled: the kernels, by name.
    """

    capability: int
    shared: int
    multiprocessors: int
    compiled: list[str] = field(default_factory=list)
    # compiled kernels are kept by device, those without floats for types of both sizes: no real one, and no other test's, has this number
    number: int = field(default_factory=itertools.count(1000).__next__)

    @property
    def utils(self) -> CompileOnly:
        return self

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": (self.shared - 1) * 1024}

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments: None

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[object, object, int, int, int]:
        self.compiled.append(name)
        registers, spilled, most_threads = 0, 0, 1024
        return object(), object(), registers, spilled, most_threads


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CompileOnly:
    from triton.runtime import driver

    found = CompileOnly(*request.param)
    for operation in OPERATIONS:
        monkeypatch.setattr(importlib.import_module(f"encoder_kernels.{operation}"), "runs_triton", lambda tensor: True)
    monkeypatch.setattr(dispatch, "multiprocessors", lambda device: (found.shared * 1024, found.multiprocessors))
    # not by `set_active`: without a GPU there is no default to go back to
    monkeypatch.setattr(driver, "_active", found)
    return found


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [
        pytest.param((80, 164, 108), torch.bfloat16, id="A100"),
        pytest.param((89, 100, 58), torch.bfloat16, id="L4"),
        pytest.param((90, 228, 132), torch.bfloat16, id="H100"),
        pytest.param((100, 228, 148), torch.bfloat16, id="B200"),
        pytest.param((89, 100, 58), torch.float32, id="L4-float32"),
    ],
    indirect=["gpu"],
)
def test_every_kernel_compiles_and_fits_into_shared_memory(gpu: CompileOnly, dtype: torch.dtype) -> None:
    def some(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    def floats(*shape: int) -> torch.Tensor:
        return some(*shape, dtype=torch.float32)

    def integers(*shape: int) -> torch.Tensor:
        return some(*shape, dtype=torch.int32)

    gelu(some(8, 3072))
    for activation in ("gelu", "gelu_tanh"):
        gated_linear_unit(some(8, 2304), activation)
    rotary(some(8, 12, 64), some(8, 12, 64), integers(8), floats(32))
    rotary(some(8, 16, 64), some(8, 8, 64), integers(8), floats(32), HeadNorm(some(64), some(64), 1e-5))
    rotary(some(8, 3, 256), some(8, 1, 256), integers(8), floats(128), HeadNorm(some(256), some(256), 1e-6, 1.0))
    heads, grouped = some(8, 12, 64), some(8, 4, 64)
    for keys in (None, integers(2)):
        relative_bias_attention(heads, heads, heads, floats(12, 257), integers(3), 8, key_lengths=keys)
        relative_bias_attention(heads, heads, heads, None, integers(3), 8, key_lengths=keys)
        relative_bias_attention(heads, heads, heads, None, integers(3), 8, window=64, key_lengths=keys)
        relative_bias_attention(heads, grouped, grouped, None, integers(3), 8, causal=True, key_lengths=keys)
    table, tables = some(12, 1023, 64), some(2, 12, 1023, 64)
    # in float32 each form takes Triton seconds
    short = dtype.itemsize == 2
    for key, query in ((table, table), (table, None), (None, table), (None, None))[: None if short else 1]:
        disentangled_attention(heads, heads, heads, key, query, integers(3), 8, scale=0.1)
    for key, of in ((tables, integers(2)), (table, None))[: None if short else 1]:
        disentangled_attention(
            heads, heads, heads, key, key, integers(3), 8, scale=0.1, key_lengths=integers(2), tables=of
        )
    for sequences in (4, 200):
        bidirectional_lstm(
            some(400, 768),
            some(2, 1536, 768),
            some(2, 1536, 384),
            some(2, 1536),
            integers(sequences + 1),
            integers(sequences),
        )
    for labels in (16, 32, 64):
        words, label, bias = some(8, 768), some(labels, 768), floats(labels)
        span_scores(
            words,
            words,
            label,
            bias,
            integers(3),
            integers(3),
            floats(2),
            max_width=12,
            capacity=64,
            max_words=8,
            max_labels=labels,
        )
        span_logits(words, words, label, bias, max_width=12)
    for rows in (None, integers(8)):
        token_scores(
            some(8, 3072),
            some(4, 3072),
            some(8, 768),
            some(4, 768),
            Layers(some(3072, 768), some(3, 3072), some(3)),
            integers(3),
            integers(3),
            integers(3),
            pairs=32,
            label_rows=rows,
        )
    kernels = {"lstm", "span_logits", "pair_places", "pair_products", *OPERATIONS} - {"bidirectional_lstm"}
    assert set(gpu.compiled) >= {f"{name}_kernel" for name in kernels}
