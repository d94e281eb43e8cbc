"""What vLLM's ``--quantization fp8`` rounds, on a CPU, which has no kernels for it: the bounds of fp8 are tested with it.

Weights are rounded to e4m3 with one scale for each layer, and its inputs with one scale for each token, as vLLM does on Hopper; the
product is computed by the layer as it is. Only layers that were given a quantisation configuration would be quantised there: those that
are not are named by their prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

# the largest number of e4m3
LARGEST = 448.0


def rounded(values: Tensor, *, by_row: bool) -> Tensor:
    """Return values as e4m3 holds them, with one scale for all, or for each row."""
    exact = values.float()
    largest = exact.abs().amax(dim=-1, keepdim=True) if by_row else exact.abs().max()
    scale = (largest / LARGEST).clamp(min=1e-12)
    return ((exact / scale).to(torch.float8_e4m3fn).float() * scale).to(values.dtype)


@contextmanager
def emulated(left_out: Collection[str] = ("embed_proj",)) -> Iterator[list[str]]:
    """Round every linear layer of vLLM in engines that start in the block; gives the prefixes of those that were rounded.

    Args:
        left_out: Last parts of the prefixes of layers that have no quantisation configuration.
    """
    from vllm.model_executor.layers import linear

    method = linear.UnquantizedLinearMethod
    loaded, applied = method.process_weights_after_loading, method.apply
    names: list[str] = []

    def process(self: Any, layer: Any) -> None:
        name = str(getattr(layer, "prefix", ""))
        if name.rpartition(".")[2] not in left_out:
            names.append(name)
            layer.emulates_fp8 = True
            layer.weight.data.copy_(rounded(layer.weight.data, by_row=False))
        loaded(self, layer)

    def apply(self: Any, layer: Any, x: Tensor, bias: Tensor | None = None) -> Any:
        taken = rounded(x, by_row=True) if getattr(layer, "emulates_fp8", False) else x
        return applied(self, layer, taken, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "process_weights_after_loading", process)
        patch.setattr(method, "apply", apply)
        yield names
