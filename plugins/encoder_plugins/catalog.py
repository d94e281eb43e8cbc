"""Finds the plugins: every folder of ``models/`` whose ``__init__`` holds a ``PLUGIN``.

Imports only those ``__init__`` modules, which are strings and nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import MappingProxyType

from encoder_plugins import models
from encoder_plugins.errors import UnknownPlugin
from encoder_plugins.plugin import Plugin


@cache
def plugins() -> MappingProxyType[str, Plugin]:
    """Return every plugin by name, in alphabetical order."""
    found = {}
    for folder in sorted(entry.name for entry in pkgutil.iter_modules(models.__path__) if entry.ispkg):
        plugin: Plugin = importlib.import_module(f"{models.__name__}.{folder}").PLUGIN
        found[plugin.name] = plugin
    return MappingProxyType(found)


def get(name: str) -> Plugin:
    """Return the plugin called ``name``.

    Raises:
        UnknownPlugin: There is none; the message lists those there are.
    """
    try:
        return plugins()[name]
    except KeyError:
        raise UnknownPlugin(f"no plugin is called {name!r}; there is: {', '.join(plugins())}") from None
