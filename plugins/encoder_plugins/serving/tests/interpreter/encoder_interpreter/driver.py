"""The device that the interpreter claims to have."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from triton.backends import compiler, driver


class InterpretedDriver(driver.DriverBase):  # type: ignore[misc]
    """Reports a CPU."""

    @staticmethod
    def is_active() -> bool:
        """Exist only where kernels are interpreted."""
        return os.environ.get("TRITON_INTERPRET") == "1"

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Return the type as it is: nothing is compiled."""
        return ty

    def get_current_target(self) -> Any:
        """Name the target."""
        return compiler.GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> Any:
        """Return torch's CPU."""
        import torch

        return torch.device("cpu")

    def get_current_device(self) -> int:
        """Return the only one."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Accept the only one."""

    def get_current_stream(self, device: int = 0) -> int:
        """Return the only one."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Return one that enables nothing."""
        return 0, 0

    def get_device_interface(self) -> Any:
        """Return torch's module for the device."""
        import torch

        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        """Return a stopwatch: autotuning has to choose something."""
        return _measure

    def get_empty_cache_for_benchmark(self) -> None:
        """Have no cache to empty."""

    def clear_cache(self, cache: Any) -> None:
        """Have no cache to clear."""


def _measure(call: Callable[[], object], quantiles: Sequence[float] | None = None, **options: Any) -> Sequence[float]:
    start = time.perf_counter()
    call()
    return [(time.perf_counter() - start) * 1000] * len(quantiles or (0,))
