"""What the cluster is made with: folders, addresses, sizes. The only module that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).resolve().parent / "etc"
"""Templates of the configuration files."""
TOOLS = Path(__file__).resolve().parents[1] / "tools"
"""The two Go modules whose go.mod files pin every program."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Every folder that the cluster uses; all of them below the cache."""

    cache: Path

    @property
    def node(self) -> Path:
        """All state of one running node; `down` empties it, except for the logs."""
        return self.cache / "node"

    @property
    def etc(self) -> Path:
        """Rendered configuration."""
        return self.node / "etc"

    @property
    def pki(self) -> Path:
        """Certificates, keys and kubeconfigs."""
        return self.node / "pki"

    @property
    def run(self) -> Path:
        """Records of what was started, so that `down` ends that and nothing else."""
        return self.node / "run"

    @property
    def var(self) -> Path:
        """Data of etcd and the kubelet."""
        return self.node / "var"

    @property
    def log(self) -> Path:
        """One file per component, and `pods/`. Kept by `down`, emptied by `up`."""
        return self.node / "log"

    @property
    def volumes(self) -> Path:
        """The folders behind the local persistent volumes."""
        return self.var / "volumes"

    @property
    def containerd(self) -> Path:
        """The image store. It outlives the node: a heavy image is imported once."""
        return self.cache / "containerd"

    @property
    def bin(self) -> Path:
        """Built programs, one folder per set of versions."""
        return self.cache / "bin"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.pki / "super-admin.conf"


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses. They are fixed, so one node fits on a machine at a time."""

    link: str = "encoder0"
    """The machine's end of the cable to the node; at most 15 characters."""
    host_ip: str = "10.201.0.1"
    node_ip: str = "10.201.0.2"
    pods: str = "10.244.0.0/16"
    node_pods: str = "10.244.0.0/24"
    """The part of `pods` that the one node hands out."""
    services: str = "10.96.0.0/16"
    dns_ip: str = "10.96.0.10"


@dataclass(frozen=True, slots=True)
class Volumes:
    """Persistent volumes made in advance: nothing provisions them on demand."""

    count: int = 40
    size: str = "5Gi"
    storage_class: str = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One cluster, whichever way it is made."""

    name: str = "encoder-node"
    """The node's host name, its cgroups, and the kind cluster."""
    paths: Paths
    network: Network = field(default_factory=Network)
    volumes: Volumes = field(default_factory=Volumes)
    start_seconds: float = 60
    """How long any one step of `up` may take, in seconds."""
    build_seconds: float = 3000
    """How long any one step of `build` may take, in seconds."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Returns where this project keeps what is heavy.

    `ENCODER_CACHE`, else `XDG_CACHE_HOME`, else `~/.cache`; in each of them the folder `encoder-operator`.
    """
    for name in ("ENCODER_CACHE", "XDG_CACHE_HOME"):
        if environment.get(name):
            return Path(environment[name]).absolute() / "encoder-operator"
    return Path(environment.get("HOME") or "~").expanduser() / ".cache" / "encoder-operator"


def load() -> Settings:
    """Returns the settings of this machine."""
    return Settings(paths=Paths(cache_folder(os.environ).resolve()))
