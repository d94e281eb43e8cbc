"""What a test or the demo can use of a cluster, and which of the two kinds this machine gets."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from encoder_node import kind, node, prerequisites
from encoder_node import settings as settings_module
from encoder_node.prerequisites import Missing
from encoder_node.programs import Programs
from encoder_node.status import Status


class Cluster(Protocol):
    """A Kubernetes cluster of one node."""

    @property
    def name(self) -> str:
        """Name of the cluster."""

    @property
    def node_name(self) -> str:
        """Name of its one node."""

    @property
    def bin_dir(self) -> Path:
        """The folder with `kubectl` and `helm`."""

    def build(self) -> None:
        """Makes what the cluster is made of; the second time it does nothing."""

    def up(self) -> None:
        """Starts the cluster and waits until it can be used; verifies one that is up."""

    def down(self) -> None:
        """Ends the cluster and leaves nothing of it but caches; also after a crash of `up`."""

    def status(self) -> Status:
        """Returns how the cluster is."""

    def load(self, archives: Sequence[Path]) -> None:
        """Puts images from archives on the node."""

    def import_image(self, source: Path | IO[bytes]) -> None:
        """Imports an image archive from a file or a stream, and gives its images every name that a pod may use.

        On our own node, layers that it has unpacked may be absent from the archive.
        """

    def images(self) -> dict[str, str]:
        """Returns the manifest digest of each image name on the node."""

    def unpacked_chains(self) -> set[str]:
        """Returns the chain ids of the layers that the node has unpacked."""

    def recycle_volumes(self) -> list[str]:
        """Empties the volumes whose claims are gone and offers them again; returns their names. `up` does it, too."""

    def kubeconfig(self) -> Path:
        """Returns the administrator's kubeconfig."""

    def run(self, command: Sequence[str]) -> str:
        """Runs a command on the node and returns its output."""

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns a command of this machine that runs the given one on the node, with the caller's input and output."""


def docker_answers() -> bool:
    """Whether a Docker daemon can be reached."""
    try:
        answer = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, check=False, timeout=20
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def missing(settings: settings_module.Settings | None = None) -> list[Missing]:
    """Returns what this machine lacks for a cluster, and what nothing here installs: Debian's packages are installed when they are needed."""
    if docker_answers():
        return kind.missing_programs()
    chosen = settings if settings is not None else settings_module.load()
    go = [] if Programs(chosen).built else prerequisites.missing_go()
    return [*prerequisites.missing_system(chosen.paths.cache), *go]


def detect(settings: settings_module.Settings | None = None) -> Cluster:
    """Returns the cluster that fits this machine: kind where a Docker daemon answers, else the node of our own."""
    chosen = settings if settings is not None else settings_module.load()
    return kind.KindCluster(chosen) if docker_answers() else node.NodeCluster(chosen)
