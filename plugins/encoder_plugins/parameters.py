"""Parameters of a preparation: what a plugin declares, and reading what a user wrote.

Standard library only: the operator checks ``spec.prepare.parameters`` with these functions, and prep its command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from encoder_plugins.plugin import Parameter, Plugin

Value = str | tuple[str, ...]
"""One of a parameter's values; or several, where it takes a list."""


def check(plugin: Plugin, given: Mapping[str, str | Sequence[str]]) -> dict[str, Value]:
    """Return the parameters of a preparation, sorted by name, each of the type that the plugin declares.

    Args:
        plugin: The plugin that the checkpoint is prepared for.
        given: The user's values by name.

    Raises:
        ValueError: The plugin does not take a name or a value. The message begins with the parameter's name.
    """
    declared = {parameter.name: parameter for parameter in plugin.parameters}
    found: dict[str, Value] = {}
    for name in sorted(given):
        if name not in declared:
            has = f"it has {', '.join(declared)}" if declared else "it has none"
            raise ValueError(f"{name}: plugin {plugin.name} has no such parameter; {has}")
        found[name] = _value(declared[name], given[name])
    return found


def read(plugin: Plugin, arguments: Iterable[str]) -> dict[str, Value]:
    """Read ``NAME=VALUE`` and ``NAME=VALUE,VALUE`` of a command line; raises as ``check``."""
    several = {parameter.name for parameter in plugin.parameters if parameter.several}
    given: dict[str, str | list[str]] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            raise ValueError(f"{argument}: expected NAME=VALUE")
        if name in given:
            raise ValueError(f"{name}: is given twice")
        given[name] = value.split(",") if name in several else value
    return check(plugin, given)


def arguments(values: Mapping[str, str | Sequence[str]]) -> list[str]:
    """Return what ``read`` reads back, sorted by name."""
    texts = ((name, value if isinstance(value, str) else ",".join(value)) for name, value in sorted(values.items()))
    return [f"{name}={text}" for name, text in texts]


def json_values(values: Mapping[str, Value]) -> dict[str, str | list[str]]:
    """Return parameters as JSON has them."""
    return {name: value if isinstance(value, str) else list(value) for name, value in sorted(values.items())}


def _value(parameter: Parameter, given: str | Sequence[str]) -> Value:
    if parameter.several:
        if isinstance(given, str):
            raise ValueError(f"{parameter.name}: is {given!r}; expected a list")
        for value in given:
            _require(parameter, value)
        if len(set(given)) != len(given) or not given:
            raise ValueError(f"{parameter.name}: is {', '.join(given) or 'empty'}; expected different values")
        return tuple(given)
    if not isinstance(given, str):
        raise ValueError(f"{parameter.name}: is a list; expected one value")
    _require(parameter, given)
    return given


def _require(parameter: Parameter, value: str) -> None:
    if value not in parameter.values:
        raise ValueError(f"{parameter.name}: is {value!r}; supported: {', '.join(parameter.values)}")
