"""Every test that takes `form` or `any_form` runs in each form that a kernel has here.

On a CPU that is the PyTorch reference, in a process of its own with TRITON_INTERPRET=1 the Triton kernel through Triton's interpreter (which
computes bfloat16 wrongly), and with the marker `gpu` the compiled kernel. On a CPU types of 16 bits are slow and take the same path as float32
through a kernel, so that only the tests with `any_form` run in them: one of each kernel over all of its shapes, and those that need whole blocks of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from encoder_kernels.dispatch import INTERPRETED
from encoder_kernels.tests import interpreter

# of the Frobenius norm, for results that went through one rounding of the inputs' type and some of what lies between
TOLERANCE = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@dataclass(frozen=True)
class Form:
    """Where a test's tensors live, and their type."""

    device: str
    dtype: torch.dtype

    @property
    def small(self) -> bool:
        """The interpreter takes a millisecond for every line of every program."""
        return INTERPRETED

    def randn(self, *shape: int) -> torch.Tensor:
        """Return random numbers."""
        return torch.randn(*shape, dtype=torch.float32).to(self.dtype).to(self.device)

    def offsets(self, lengths: list[int]) -> torch.Tensor:
        """Return where sequences of these lengths begin, and the end of the last."""
        return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(self.device)

    def poisoned(self, *shape: int) -> torch.Tensor:
        """Return what a kernel must overwrite."""
        return torch.full(shape, float("nan"), dtype=self.dtype, device=self.device)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `form` and `any_form` their values."""
    name = next((name for name in ("form", "any_form") if name in metafunc.fixturenames), None)
    if name is None:
        return
    on_cpu = [torch.float32] if INTERPRETED else [torch.float64, torch.float32]
    if name == "any_form":
        on_cpu += [torch.float16] if INTERPRETED else [torch.bfloat16, torch.float16]
    params = [pytest.param(Form("cpu", dtype), id=f"cpu-{str(dtype)[6:]}") for dtype in on_cpu]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        params.append(pytest.param(Form("cuda", dtype), id=f"cuda-{str(dtype)[6:]}", marks=pytest.mark.gpu))
    metafunc.parametrize(name, params)


if INTERPRETED:
    interpreter.reduce_cost()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20)


@pytest.fixture
def close() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Assert that a result lies within its type's tolerance of the float64 expectation, and has no hole."""

    def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
        assert expected.dtype == torch.float64
        assert actual.shape == expected.shape
        if expected.numel() == 0:
            return
        distance = (actual.double().cpu() - expected.cpu()).norm() / expected.norm().cpu()
        assert distance.item() <= TOLERANCE[actual.dtype], f"{distance.item():.1e}"

    return check
