"""The limits of requests as typed objects: which a plugin has, and which values a server was started with.

A plugin declares its limits as data (``Plugin.limits``), so that the operator and the documentation can list them. A processor
reads them through a frozen dataclass whose fields are the names of those limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from encoder_plugins.errors import BadArgument
from encoder_plugins.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits of every plugin; ``encoder_plugins.plugin.REQUEST_LIMITS`` describes them."""

    body_bytes: int
    body_seconds: int
    header_seconds: int
    in_flight: int


L = TypeVar("L", bound=RequestLimits)


def typed(kind: type[L], values: Mapping[str, int]) -> L:
    """Return ``values`` as an object of ``kind``; raises KeyError where a limit of it is missing."""
    return kind(**{entry.name: values[entry.name] for entry in fields(kind)})


def defaults(plugin: Plugin) -> dict[str, int]:
    """Return the default of each limit of ``plugin`` by name."""
    return {limit.name: limit.default for limit in plugin.limits}


def parse(plugin: Plugin, assignments: Sequence[str]) -> dict[str, int]:
    """Return every limit of ``plugin`` by name, with the values of ``name=value`` strings.

    Raises:
        BadArgument: The plugin has no such limit, or the value is not a whole number above 0.
    """
    values = defaults(plugin)
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if name not in values:
            raise BadArgument(f"--limit {name}: {plugin.name} has no such limit; it has: {', '.join(values)}")
        if not (value.isascii() and value.isdecimal()) or int(value) < 1:
            raise BadArgument(f"--limit {name}: {value!r} is not a whole number above 0")
        values[name] = int(value)
    return values
