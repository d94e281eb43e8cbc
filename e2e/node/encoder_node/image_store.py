"""containerd's images: importing, naming, listing, and clearing away what an earlier node left.

The store outlives the node. Of an image it keeps the unpacked layers only, so that a layer is on the disk once; an
archive may leave out layers that the store has unpacked.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from encoder_node.errors import NodeError

DEFAULT_HOST = "docker.io/"
"""What the kubelet's side puts before a name without a host, `encoder-operator/operator` for example. The one place
that knows: an image whose name lacks it is on the disk, and every pod that requests it reports ErrImagePull."""

KEPT = ("io.containerd.content.v1.content", "io.containerd.metadata.v1.bolt", "io.containerd.snapshotter.v1.overlayfs")
"""The parts of containerd's root that hold images; the others speak of containers that are no more."""


def normalized(reference: str) -> str:
    """Returns the name under which the kubelet's side looks an image up."""
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return DEFAULT_HOST + (reference if slash else f"library/{reference}")


def by_digest(reference: str, digest: str) -> str:
    """Returns the name that pins an image: `repository@sha256:…`."""
    repository, colon, tag = reference.rpartition(":")
    return f"{repository if colon and '/' not in tag else reference}@{digest}"


def missing_names(images: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns, for each name that is there, the names that the same image must have too.

    Args:
        images: Digest by name.
    """
    wanted: dict[str, list[str]] = {}
    for reference, digest in images.items():
        if "@" in reference or reference.startswith("sha256:"):
            continue
        full = normalized(reference)
        names = [name for name in (full, by_digest(full, digest)) if images.get(name) != digest]
        if names:
            wanted[reference] = names
    return wanted


def outdated_names(images: Mapping[str, str]) -> list[str]:
    """Returns the names that only keep old images on the disk: digests that no tag has any more, and bare ids.

    A running cluster may need them (a pod that goes back to its last revision); between two clusters nobody does. The
    bare ids come back by themselves.
    """
    tagged = {by_digest(reference, digest) for reference, digest in images.items() if "@" not in reference}
    return [name for name in images if name.startswith("sha256:") or ("@" in name and name not in tagged)]


def parse_images(listing: str) -> dict[str, str]:
    """Returns digest by name from `ctr images ls`."""
    rows = (row.split() for row in listing.splitlines()[1:])
    return {row[0]: row[2] for row in rows if len(row) > 2}


def parse_snapshots(listing: str) -> dict[str, str]:
    """Returns kind (`Committed`, `Active`, `View`) by key from `ctr snapshots ls`."""
    rows = (row.split() for row in listing.splitlines()[1:])
    return {row[0]: row[-1] for row in rows if row}


class Runner(Protocol):
    """What runs a command on the node and returns its output."""

    def __call__(self, command: Sequence[str], *, stdin: IO[bytes] | None = None, seconds: float = 600) -> str:
        """Runs the command, with a stream as its input, for at most so many seconds."""


class ImageStore:
    """The images of a node whose containerd runs."""

    def __init__(self, run: Runner, *, client: Sequence[str], import_options: Sequence[str]) -> None:
        self._run = run
        self._client = tuple(client)
        self._import_options = tuple(import_options)

    def ctr(self, *arguments: str, stdin: IO[bytes] | None = None, seconds: float = 600) -> str:
        """Runs containerd's own client in the kubelet's namespace and returns its output."""
        return self._run([*self._client, "-n", "k8s.io", *arguments], stdin=stdin, seconds=seconds)

    def import_image(self, source: Path | IO[bytes]) -> None:
        """Imports an image archive, and gives its images every name that a pod may use.

        Args:
            source: An archive, or a stream of one. Layers that the store has unpacked may be absent from it.

        Raises:
            CommandFailedError: containerd refused it.
        """
        if isinstance(source, Path):
            with source.open("rb") as stream:
                self.import_image(stream)
            return
        # the archive comes through a pipe: a path on the machine may be hidden on the node
        self.ctr("images", "import", *self._import_options, "-", stdin=source, seconds=1200)
        for reference, names in missing_names(self.images()).items():
            self.ctr("images", "tag", "--force", reference, *names)

    def images(self) -> dict[str, str]:
        """Returns digest by name."""
        return parse_images(self.ctr("images", "ls"))

    def unpacked_chains(self) -> set[str]:
        """Returns the chain ids of all layers that are unpacked."""
        return {key for key, kind in parse_snapshots(self.ctr("snapshots", "ls")).items() if kind == "Committed"}

    def answers(self) -> bool:
        """Whether containerd serves."""
        try:
            self.ctr("version", seconds=10)
        except NodeError:
            return False
        return True

    def sweep(self) -> None:
        """Removes an earlier node's containers, their file systems, and images that nothing names any more.

        To be called while containerd serves no pods: it would remember them otherwise.
        """
        containers = self.ctr("containers", "ls", "-q").split()
        if containers:
            self.ctr("containers", "rm", *containers)
        active = [key for key, kind in parse_snapshots(self.ctr("snapshots", "ls")).items() if kind != "Committed"]
        if active:
            self.ctr("snapshots", "rm", *active)
        leases = self.ctr("leases", "ls", "-q").split()
        if leases:
            self.ctr("leases", "rm", *leases)
        outdated = outdated_names(self.images())
        if outdated:
            self.ctr("images", "rm", *outdated)


def remove_leftovers(root: Path) -> None:
    """Removes everything but images from containerd's root, while containerd is not running."""
    for part in root.iterdir() if root.exists() else ():
        if part.name not in KEPT:
            shutil.rmtree(part) if part.is_dir() else part.unlink()
