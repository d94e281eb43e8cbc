"""Encoder families for vLLM: what it serves natively and what our own models add, behind one IO processor.

This module holds vLLM's three entry points. vLLM calls them in every process it starts, more than once,
before a device is chosen: they import no torch, touch no device, and do nothing that a second call would repeat.
``VLLM_PLUGINS`` (vLLM's allow-list; ours is ``encoder``) decides whether they are called at all, and
``ENCODER_PLUGINS_DISABLED`` (ours) what they do: ``1`` turns every plugin off, names with commas between only those.
"""

from __future__ import annotations


def register() -> None:
    """Make the architectures of our own models known to vLLM (general plugin).

    Families that vLLM serves with its own model classes register nothing, and where none is left vLLM is not even
    imported. With another vLLM than the supported one nothing is registered and one line is logged: raising would also
    end a server that serves none of our models, since vLLM calls every installed plugin and catches nothing.
    """
    import os

    from encoder_plugins import catalog, compatibility
    from encoder_plugins.serving import engine_threads, graceful_shutdown, settings

    if settings.VARIABLE in os.environ:
        # a process of `encoder-plugins serve`; a server of anything else stays as it is
        engine_threads.install()
        graceful_shutdown.leave_interrupts_to_the_server()
    found = catalog.plugins()
    off = compatibility.disabled(found, os.environ)
    own = [
        registration
        for plugin in found.values()
        if plugin.name not in off
        for registration in plugin.architectures.items()
    ]
    if not own:
        return
    if (reason := compatibility.refusal(compatibility.installed_vllm())) is not None:
        import logging

        logging.getLogger(__name__).error(reason)
        return
    from vllm import ModelRegistry

    for architecture, model in own:
        # only a string goes in: the class is imported by the process that builds it
        ModelRegistry.register_model(architecture, model)


def io_processor() -> str | None:
    """Return the qualified name of the class of our IO processor (IO processor plugin).

    None, which vLLM takes for "not installed", where vLLM is not the supported one or every plugin is switched off.
    No module of this package may be called like this function: once imported, it would take the function's place.
    """
    import os

    from encoder_plugins import catalog, compatibility

    found = catalog.plugins()
    if compatibility.refusal(compatibility.installed_vllm()) is not None or not set(found) - compatibility.disabled(
        found, os.environ
    ):
        return None
    return "encoder_plugins.serving.io_processor.EncoderIOProcessor"


def platform() -> str | None:
    """Return the qualified name of the platform class for a server whose engine is forked (platform plugin).

    None, with which vLLM chooses among its own classes, in every other process.
    """
    import os

    from encoder_plugins.serving import settings

    return "encoder_plugins.serving.cpu_platform.ForkingCpuPlatform" if os.environ.get(settings.FORKED) == "1" else None
