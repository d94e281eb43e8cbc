"""What tests change in Triton's interpreter, so that a kernel costs them less time."""

from __future__ import annotations

from typing import Any


def prepare_once() -> None:
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
