# mypy: disable-error-code="no-untyped-call"
"""What a pooler would do on a GPU, seen on a CPU: which compiled forms of kernels it launches, and how often the host waits."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from encoder_kernels import bidirectional_lstm, dispatch, span_scores, token_scores
from encoder_kernels.bidirectional_lstm import kernel as lstm
from encoder_kernels.span_scores import kernel as spans
from encoder_kernels.span_scores import reference
from encoder_kernels.token_scores import kernel as pairs
from encoder_plugins.families.gliner.heads.transfers import HostCopies

_BACKEND = make_backend(GPUTarget("cuda", 90, 32))
# operations whose result has a size, or is a number, that the host has to know; those of others are not seen where gradients are off
_SIZED = {
    torch.ops.aten.nonzero.default,
    torch.ops.aten.nonzero_numpy.default,
    torch.ops.aten.item.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
    torch.ops.aten.repeat_interleave.Tensor,
    torch.ops.aten.equal.default,
}
_INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}


class Waits(TorchDispatchMode):
    """Counts what the host would wait for on a GPU: copies that it reads, and operations whose result's size it has to know.

    Another thread's copies are not counted.

    Attributes:
        seen: The name of each operation and call, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._thread = threading.get_ident()

    @property
    def count(self) -> int:
        """How often the host would wait."""
        return len(self.seen)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it waits."""
        del types
        masks = (index for index in args[1] if index is not None) if func in _INDEXED else ()
        if func in _SIZED or any(index.dtype == torch.bool for index in masks):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls a function, and counts the call."""

        def call(*arguments: Any, **more: Any) -> Any:
            if threading.get_ident() == self._thread:
                self.seen.append(function.__qualname__)
            return function(*arguments, **more)

        return call


@contextlib.contextmanager
def waits() -> Iterator[Waits]:
    """Count the waits of what runs in the block; kernels are launched as on a GPU."""
    with (
        launches(),
        Waits() as found,
        mock.patch.object(HostCopies, "wait", found.counted(HostCopies.wait)),
        mock.patch.object(torch.Tensor, "cpu", found.counted(torch.Tensor.cpu)),
    ):
        # what other tests have left is not finished in the middle of this one
        gc.disable()
        try:
            yield found
        finally:
            gc.enable()


@contextlib.contextmanager
def launches() -> Iterator[set[str]]:
    """Give the forms, by Triton's own key, in which the block launches the heads' kernels; PyTorch computes in their place."""
    forms: set[str] = set()

    def scores(arguments: Sequence[Any], width: int) -> None:
        reference.candidates(tuple(arguments[:7]), width, tuple(arguments[7:10]))

    def logits(arguments: Sequence[Any], width: int) -> None:
        start, end, label, bias, out = arguments[:5]
        out.copy_(reference.dense(start, end, label, bias, width))

    def recurrence(arguments: Sequence[Any], _: int) -> None:
        arguments[2].zero_()

    def places(arguments: Sequence[Any], _: int) -> None:
        first_word, first_label, offsets, rows, words, labels = arguments[:6]
        numbers = torch.arange(len(words))
        text = torch.searchsorted(offsets[1:].clone(), numbers, right=True)
        within, count = numbers - offsets[text], first_label.diff()[text]
        words.copy_(first_word[text] + within // count)
        own = first_label[text] + within % count
        labels.copy_(own if rows is None else rows[own])

    def products(arguments: Sequence[Any], _: int) -> None:
        of_word, of_label, words, labels, out = arguments[:5]
        out[: len(words)] = of_word[words] * of_label[labels]

    def last(arguments: Sequence[Any], _: int) -> None:
        inner, word, label, words, labels, weight, bias, out = arguments[:8]
        rows = inner[: len(words)] + word[words] + label[labels]
        out.copy_(torch.nn.functional.linear(rows.relu(), weight, bias))

    with (
        # those of an H100
        mock.patch.object(dispatch, "multiprocessors", return_value=(228 * 1024, 132)),
        mock.patch.object(span_scores, "runs_triton", return_value=True),
        mock.patch.object(bidirectional_lstm, "runs_triton", return_value=True),
        mock.patch.object(spans, "span_scores_kernel", _Kernel(spans.span_scores_kernel, scores, forms)),
        mock.patch.object(spans, "span_logits_kernel", _Kernel(spans.span_logits_kernel, logits, forms)),
        mock.patch.object(lstm, "lstm_kernel", _Kernel(lstm.lstm_kernel, recurrence, forms)),
        mock.patch.object(token_scores, "runs_triton", return_value=True),
        mock.patch.object(pairs, "pair_places_kernel", _Kernel(pairs.pair_places_kernel, places, forms)),
        mock.patch.object(pairs, "pair_products_kernel", _Kernel(pairs.pair_products_kernel, products, forms)),
        mock.patch.object(pairs, "token_scores_kernel", _Kernel(pairs.token_scores_kernel, last, forms)),
    ):
        yield forms


class _Kernel:
    def __init__(self, kernel: Any, compute: Callable[[Sequence[Any], int], None], forms: set[str]) -> None:
        self._bind = create_function_from_signature(kernel.signature, kernel.params, _BACKEND)
        self._name = kernel.__name__
        self._compute, self._forms = compute, forms

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert min(grid) > 0

        def launch(*arguments: Any, **more: Any) -> None:
            with _disable_current_modes():
                _, specialization, options = self._bind(*arguments, **more)
                self._forms.add(f"{self._name} {specialization} {sorted(options.items())}")
                self._compute(arguments, more.get("WIDTHS", 0))

        return launch
