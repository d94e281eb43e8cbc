"""Encoder families for vLLM: what it serves natively and what our own models add, behind one IO processor.

This module holds vLLM's two entry points. vLLM calls them in every process it starts, more than once,
before a device is chosen: they import neither torch nor vLLM, and do nothing that a second call would repeat.
"""

from __future__ import annotations


def register() -> None:
    """Make the architectures of our own models known to vLLM (general plugin).

    Families that vLLM serves with its own model classes register nothing, and where none is left vLLM is not even imported.
    """
    from encoder_plugins import catalog

    own = [plugin for plugin in catalog.plugins().values() if plugin.architecture and plugin.model]
    if not own:
        return
    from vllm import ModelRegistry

    known = set(ModelRegistry.get_supported_archs())
    for plugin in own:
        if plugin.architecture not in known:
            ModelRegistry.register_model(plugin.architecture, plugin.model)


def io_processor() -> str:
    """Return the qualified name of the function that builds the plugin's IO processor (IO processor plugin).

    No module of this package may be called like this function: once imported, it would take the function's place.
    """
    return "encoder_plugins.processor.create"
