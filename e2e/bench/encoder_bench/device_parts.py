"""What kernels of a profile belong together, and the tables of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# the first that is found in a kernel's name, in lower case; the rest is what torch's compiler and torch itself launch
KINDS = (
    ("attention", r"attention|flash|fmha"),
    ("rounding to 8 bits", r"^triton.*amax|quant"),
    ("LSTM", r"lstm"),
    ("span and token scores", r"span_|token_scores|pair_"),
    ("activation or gate", r"gelu|gated|silu|swiglu"),
    ("matrix products", r"gemm|nvjet|cutlass|cublas|addmm|aten::mm|aten::bmm|onednn_mm|linear|splitk|\bdot"),
    ("rotation", r"rotary|rope"),
    ("convolution", r"conv"),
    ("norm", r"norm"),
    ("copies", r"memcpy|memset|copy"),
    ("sort and search", r"sort|search|nonzero|scan|select"),
    ("gather", r"index|gather|embedding"),
)
OTHER = "other elementwise"
# of a name in the table
SHOWN = 90


class Kernel(NamedTuple):
    """A kernel of a profile.

    Attributes:
        name: As the profiler has it.
        launches: How often it ran.
        microseconds: Of the device, all launches together.
    """

    name: str
    launches: int
    microseconds: float


def kind(name: str) -> str:
    """Return what a kernel does, by its name."""
    low = name.lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, low)), OTHER)


def table(kernels: Sequence[Kernel], items: int, item: str, seconds: float, lines: int) -> Iterator[str]:
    """Yield a table of the kinds of kernels, and one of those that took the longest.

    Args:
        kernels: The kernels.
        items: Texts or pages that they were launched for.
        item: ``text`` or ``page``.
        seconds: What all of that took without the profiler.
        lines: Of the second table.
    """
    whole = sum(kernel.microseconds for kernel in kernels)
    found: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        found.setdefault(kind(kernel.name), []).append(kernel)
    yield from ("", f"| kernels | µs a {item} | share | launches a {item} |", "|---|---|---|---|")
    for name, own in sorted(found.items(), key=lambda one: -sum(kernel.microseconds for kernel in one[1])):
        micros, count = sum(kernel.microseconds for kernel in own), sum(kernel.launches for kernel in own)
        yield f"| {name} | {micros / items:.1f} | {micros / whole:.1%} | {count / items:.2f} |"
    yield f"| all | {whole / items:.1f} | | {sum(kernel.launches for kernel in kernels) / items:.2f} |"
    yield f"| from request to answer, without the profiler | {1e6 * seconds / items:.1f} | | |"
    yield from ("", f"| kernel | µs a {item} | launches a {item} | kind |", "|---|---|---|---|")
    for kernel in sorted(kernels, key=lambda one: -one.microseconds)[:lines]:
        name = re.sub(r"\s+|\|", " ", kernel.name)[:SHOWN]
        yield f"| `{name}` | {kernel.microseconds / items:.1f} | {kernel.launches / items:.2f} | {kind(kernel.name)} |"
