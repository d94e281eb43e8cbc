"""What tests change in Triton's interpreter, so that a kernel costs them less time. Its results stay the same."""

from __future__ import annotations

import functools
import math
from typing import Any


def reduce_cost() -> None:
    """Make the interpreter compute what kernels return, and nothing else."""
    _prepare_once()
    _leave_out_unused_checks()
    _find_dtypes_once()
    _find_shapes_once()


def _prepare_once() -> None:
    """Let a function that kernels call prepare the language once, and not in each call.

    The interpreter replaces every function of ``triton.language`` whenever one of ours is called, and never puts them back: a third
    of a kernel's time, where it calls some in a loop.
    """
    from triton.runtime import interpreter

    prepared: set[int] = set()

    def call(function: Any, *arguments: Any, **options: Any) -> Any:
        # what it replaces depends on the names that the module has for the language
        names = function.fn.__globals__
        if id(names) not in prepared:
            interpreter._patch_lang(function.fn)
            prepared.add(id(names))
        rewritten = function.rewrite()
        try:
            return rewritten(*arguments, **options)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.InterpretedFunction.__call__ = call


def _leave_out_unused_checks() -> None:
    """Do not compute whether sums and products of integers overflow: a third of a kernel's time.

    The interpreter computes each in 64 bits, too, compares that with the limits, and asserts the result in debug mode only, which
    it has no setting for.
    """
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "the interpreter asserts what it computes of overflows"
    builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)


def _find_dtypes_once() -> None:
    """Let the interpreter keep the numpy dtype of each Triton dtype, for which it makes a table of all of them in every operation."""
    from triton import language
    from triton.runtime import interpreter

    # pointers and blocks have no hash; both are few steps
    slow, of_scalar = interpreter._get_np_dtype, functools.cache(interpreter._get_np_dtype)

    def find(dtype: Any) -> Any:
        element = dtype.element_ty if isinstance(dtype, language.block_type) else dtype
        return slow(element) if isinstance(element, language.pointer_type) else of_scalar(element)

    interpreter._get_np_dtype = find


def _find_shapes_once() -> None:
    """Let tensors of the same shape share it: the interpreter wraps each of its numbers for every tensor, and unwraps it for the next."""
    from triton.language import core

    slow = core._unwrap_shape

    @functools.cache
    def wrapped(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))

    def make(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = wrapped(kind.shape if kind.is_block() else ())

    def unwrap(shape: Any) -> Any:
        parts = shape.values if isinstance(shape, core.tuple) else shape
        if not isinstance(parts, list | tuple):
            return slow(shape)
        sizes = [part.value if isinstance(part, core.constexpr) else part for part in parts]
        return sizes if all(isinstance(size, int) for size in sizes) else slow(shape)

    core.tensor.__init__, core._unwrap_shape = make, unwrap
