"""Turns a planned call into a method: one that sends it and waits, and one that a coroutine awaits."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from encoder_client.async_client import AsyncClient
from encoder_client.client import Client
from encoder_client.context import Context
from encoder_client.server import Server
from encoder_client.work import Work

P = ParamSpec("P")
T = TypeVar("T")


class Sender(Protocol):
    """An object whose methods are sent by a client."""

    @property
    def client(self) -> Client:
        """The client."""

    def context(self, server: Server) -> Context:
        """Return what its calls are planned from."""


class AsyncSender(Protocol):
    """An object whose methods are sent by an asynchronous client."""

    @property
    def client(self) -> AsyncClient:
        """The client."""

    def context(self, server: Server) -> Context:
        """Return what its calls are planned from."""


def method(
    plan: Callable[Concatenate[Context, P], Work[T]], former: Mapping[str, str] = MappingProxyType({})
) -> Callable[Concatenate[Sender, P], T]:
    """Return the method that sends what ``plan`` plans, with its arguments and its documentation.

    Args:
        plan: Plans a call.
        former: Names of its arguments by those that the library takes, too, but has deprecated.
    """

    def call(self: Sender, /, *args: P.args, **kwargs: P.kwargs) -> T:
        _rename(kwargs, former)
        return self.client.run(plan(self.context(self.client.server()), *args, **kwargs))

    _document(call, plan)
    return call


def async_method(
    plan: Callable[Concatenate[Context, P], Work[T]], former: Mapping[str, str] = MappingProxyType({})
) -> Callable[Concatenate[AsyncSender, P], Coroutine[Any, Any, T]]:
    """Return the coroutine function that sends what ``plan`` plans; arguments are those of ``method``."""

    async def call(self: AsyncSender, /, *args: P.args, **kwargs: P.kwargs) -> T:
        _rename(kwargs, former)
        return await self.client.run(plan(self.context(await self.client.server()), *args, **kwargs))

    _document(call, plan)
    return call


def _rename(arguments: dict[str, Any], former: Mapping[str, str]) -> None:
    for old in former.keys() & arguments.keys():
        new, value = former[old], arguments.pop(old)
        warnings.warn(f"{old} is deprecated by the library; use {new}", FutureWarning, stacklevel=3)
        arguments.setdefault(new, value)


def _document(call: Any, plan: Any) -> None:
    call.__name__ = call.__qualname__ = plan.__name__
    # callers do not pass the first argument
    lines = (plan.__doc__ or "").splitlines()
    call.__doc__ = "\n".join(line for line in lines if not line.strip().startswith("context: "))
    signature = inspect.signature(plan, eval_str=False)
    _, *rest = signature.parameters.values()
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    returned = str(signature.return_annotation).removeprefix("Work[").removesuffix("]")
    call.__signature__ = signature.replace(parameters=[own, *rest], return_annotation=returned)
