"""How heads move numbers between host and device: none of it stops the device, and what the host waits for is counted in one place.

A copy from memory that is not pinned makes the driver wait for everything that is queued before it, and so does every operation whose result
has a size that depends on values. A head therefore sends indices with ``to_device``, queues all that it can, and reads results behind
``HostCopies.wait``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(device: torch.device, *arrays: NDArray[Any]) -> list[Tensor]:
    """Return arrays as tensors on the device, without waiting for it; on a CPU they share the arrays' memory."""
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    if device.type != "cuda":
        return tensors
    # PyTorch keeps pinned memory until the device has read it
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]


class HostCopies:
    """Tensors on their way to the host, all behind one event.

    Args:
        tensors: On one device. What is queued there before is computed first; what is queued later does not delay them.
        into: Pinned tensors of their shapes and types, where there are any already.
    """

    def __init__(self, *tensors: Tensor, into: Sequence[Tensor] | None = None) -> None:
        self._host: Sequence[Tensor] = tensors
        self._event: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            self._host = into or [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors]
            for copy, tensor in zip(self._host, tensors, strict=True):
                copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> list[NDArray[Any]]:
        """Return the values as soon as they are there. Every call is one wait of the host."""
        if self._event is not None:
            self._event.synchronize()
        return [tensor.numpy() for tensor in self._host]


def to_host(*tensors: Tensor) -> list[NDArray[Any]]:
    """Return the values of tensors, with one wait for all of them; without any there is none."""
    return HostCopies(*tensors).wait() if tensors else []


def in_parts(results: Iterable[Sequence[Tensor]], most: int) -> Iterator[list[NDArray[Any]]]:
    """Yield the values of results, with one wait for as many as have ``most`` numbers together, or for one that has more.

    Args:
        results: The tensors of each; taking one queues what computes it.
        most: Numbers that may be on the device at once, but for those of the last result.
    """
    queued: list[Sequence[Tensor]] = []

    def values() -> Iterator[list[NDArray[Any]]]:
        host = iter(to_host(*(tensor for tensors in queued for tensor in tensors)))
        for tensors in queued:
            yield [next(host) for _ in tensors]

    count = 0
    for tensors in results:
        queued.append(tensors)
        count += sum(tensor.numel() for tensor in tensors)
        if count >= most:
            yield from values()
            queued, count = [], 0
    yield from values()


def nonzero(mask: Tensor) -> tuple[Tensor, ...]:
    """Return where a mask is true, one tensor for each dimension; the host waits for the device, to know how many places there are."""
    return mask.nonzero(as_tuple=True)
