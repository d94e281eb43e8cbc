"""How the benchmarks measure and what they print. Needs a GPU; imported by the ``bench`` modules only."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton

Row = Sequence[str | float | None]

compile_references = True
"""Whether references are measured through torch.compile, too, which takes minutes for attention; `bench --without-compile` sets it."""


def microseconds(call: Callable[[], Any]) -> float:
    """Return the median time of ``call`` on the device, in microseconds, with a cold cache.

    The call is recorded into a CUDA graph where that is possible, so that launches cost what they cost in a served model; a call that waits
    for the device cannot be recorded and is timed as it is.
    """
    call()
    torch.cuda.synchronize()
    timed = call
    try:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        timed = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
    times = triton.testing.do_bench(timed, warmup=10, rep=40, return_mode="all")
    return float(1000 * statistics.median(times))


def copy_microseconds(read: int, written: int) -> float:
    """Return the time of a device copy that moves ``read + written`` bytes."""
    source = torch.empty((read + written) // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return microseconds(lambda: target.copy_(source))


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call`` through torch.compile, which may leave out what it cannot trace; one that raises where none is wanted."""
    if not compile_references:
        return _refuse
    torch._dynamo.reset()
    return torch.compile(call)


def _refuse(*_: Any) -> None:
    raise RuntimeError("references are not compiled in this run")


def attempt(call: Callable[[], Any]) -> float | None:
    """Return ``microseconds(call)``, or None where the call does not run here."""
    try:
        return microseconds(call)
    except Exception as error:
        print(f"<!-- not measured: {type(error).__name__}: {str(error).splitlines()[0][:160]} -->")
        torch.cuda.synchronize()
        return None


def peer(module: str) -> Any | None:
    """Return a library to compare with, or None where it is absent. Looked up by name: no kernel depends on one."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        print(f"<!-- absent: {module}: {type(error).__name__} -->")
        return None


def vllm_op(name: str) -> Any | None:
    """Return an operation of vLLM's compiled extension, or None where vLLM is absent or has none of that name."""
    if peer("vllm._C_stable_libtorch") is None:
        return None
    return getattr(torch.ops._C, name, None)


def about() -> str:
    """Return the GPU's name and the versions."""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, CUDA {torch.version.cuda}"


def table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a markdown table under a heading; numbers in microseconds or ratios, a dash for what was not measured."""

    def cell(value: str | float | None) -> str:
        if value is None:
            return "–"
        return value if isinstance(value, str) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

    lines = [f"### {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
