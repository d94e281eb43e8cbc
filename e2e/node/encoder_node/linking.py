"""Puts large layers on the node without a copy: hard links from the file system that BuildKit keeps of the layer.

A layer of 6 GB would be on the disk four times: in BuildKit's snapshot, as an archive in BuildKit's store and in our
layout (one file with two names, see `buildkit.py`), and unpacked on the node. The unpacked files never change, so both
snapshots can share them. Once the node has the layer, nobody reads the archive any more: the image is known by digests.
It becomes a file of the same size without content (`hollow`), and the layer is on the disk once.

Whether a folder is the layer is not guessed: it must have every entry of the archive, with the same type, size, time
and first bytes, and of several such folders it is the smallest.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from encoder_node.errors import CommandFailedError, NodeError
from encoder_node.image_store import ImageStore
from encoder_node.layouts import Descriptor, blob_path, is_hollow

WORTHWHILE = 32 << 20
"""Smaller layers are sent as archives, in bytes."""
WHITEOUT = ".wh."
"""In an archive, the name of a file that the layer removes begins so."""
OPAQUE = ".wh..wh..opq"
"""In an archive, says that a folder hides what is below it."""
START = 4096
"""So much of each file is compared, in bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What identifies one entry of a layer."""

    kind: int
    size: int = 0
    modified: int = 0
    start: bytes = b""
    """The beginning of a file's content."""


def archive_entries(archive: Path) -> Iterator[tuple[str, Entry | None]]:
    """Yields the path of each entry of an uncompressed layer with its marks, None for one that is only counted."""
    kinds = {tarfile.REGTYPE: stat.S_IFREG, tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK}
    with tarfile.open(archive, "r:") as source:
        for member in source:
            kind = kinds.get(member.type)
            if PurePosixPath(member.name).name == OPAQUE:
                # no file in a snapshot, but an attribute of the folder
                continue
            if kind is None or WHITEOUT in member.name:
                yield member.name, None
            elif kind == stat.S_IFREG:
                content = source.extractfile(member)
                start = content.read(START) if content is not None else b""
                yield member.name, Entry(kind, member.size, int(member.mtime), start)
            else:
                # making a file in a folder changes the folder's time
                yield member.name, Entry(kind, modified=int(member.mtime) if kind == stat.S_IFLNK else 0)


def file_entry(path: Path) -> Entry | None:
    """Returns the marks of a file, None if there is none."""
    try:
        found = path.lstat()
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFREG:
            with path.open("rb") as content:
                return Entry(kind, found.st_size, int(found.st_mtime), content.read(START))
    except OSError:
        return None
    return Entry(kind, modified=int(found.st_mtime) if kind == stat.S_IFLNK else 0)


def count_files(folder: Path) -> int:
    """Returns how many entries a folder has, at any depth."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


def writable_folder(mounts: str) -> Path:
    """Returns the folder that a prepared snapshot is written to, from what `ctr snapshots mounts` prints."""
    # a snapshot with nothing below it is no overlay but the folder itself
    found = re.search(r"upperdir=([^,\s]+)", mounts) or re.search(r"mount -t bind (\S+)", mounts)
    if found is None:
        raise NodeError(f"no folder in what containerd answered: {mounts.strip()!r}")
    return Path(found[1])


@dataclass(frozen=True, slots=True)
class Links:
    """Layers that BuildKit has unpacked."""

    snapshots: Path
    """The folder with BuildKit's snapshots."""
    layout: Path
    records: Path
    """A file in BuildKit's own state: it goes with the folders that it names."""

    def known(self) -> Mapping[str, str]:
        """Returns the folder of each layer found so far, by digest."""
        return json.loads(self.records.read_text()) if self.records.exists() else {}

    def folder(self, layer: Descriptor) -> Path | None:
        """Returns BuildKit's folder with exactly the files of a layer, None if there is none."""
        recorded = self.known().get(layer.digest)
        if recorded is not None and Path(recorded).is_dir():
            return Path(recorded)
        archive = blob_path(self.layout, layer.digest)
        if is_hollow(archive):
            raise NodeError(
                f"layer {layer.digest} is on neither side: remove {self.records.parent} and {self.layout}, and build again"
            )
        found = self._search(archive)
        if found is not None:
            self.records.write_text(json.dumps({**self.known(), layer.digest: str(found)}))
        return found

    def _search(self, archive: Path) -> Path | None:
        candidates = [folder for folder in self.snapshots.glob("*/fs") if any(folder.iterdir())]
        for name, expected in archive_entries(archive):
            if expected is not None:
                candidates = [folder for folder in candidates if file_entry(folder / name) == expected]
            if not candidates:
                return None
        # an archive leaves out what a step touched and did not change, a folder does not; more than that is another layer
        return min(candidates, key=count_files, default=None)

    def link(self, store: ImageStore, layer: Descriptor, chain: str, parent: str) -> bool:
        """Makes a layer an unpacked one of the node.

        Args:
            store: The node's images.
            layer: The layer.
            chain: Its chain id.
            parent: The chain id below, which the node has unpacked; empty for the lowest layer.

        Returns:
            Whether it was possible.
        """
        folder = self.folder(layer)
        if folder is None:
            return False
        key = f"linking-{layer.digest[-12:]}"
        store.ctr("snapshots", "prepare", key, *([parent] if parent else []))
        # the path is the same on the node and on the machine
        target = writable_folder(store.ctr("snapshots", "mounts", "/nowhere", key))
        command = ["cp", "--archive", "--link", f"{folder}/.", f"{target}/"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            store.ctr("snapshots", "rm", key)
            if "cross-device" in done.stderr:
                return False
            raise CommandFailedError(command, done.returncode, done.stderr)
        store.ctr("snapshots", "commit", chain, key)
        return True

    def release(self, store: ImageStore, chain: str) -> None:
        """Leaves a linked layer to the images that contain it: it goes when the last one goes."""
        store.ctr("snapshots", "label", chain, "containerd.io/gc.root=")
