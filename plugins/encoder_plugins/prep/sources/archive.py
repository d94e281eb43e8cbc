"""Unpacks a tar that came from somewhere else: plain files below one folder, and nothing else.

The tar is read once, from its beginning, a chunk at a time. Links, devices, sparse files, absolute and climbing paths are
refused by their names, and no file is begun that the volume has no room for.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from encoder_plugins.artifact.manifest import is_inside
from encoder_plugins.errors import InsufficientSpace, SourceFileNotFound, Unsupported
from encoder_plugins.prep.progress import Progress

MOST_FILES = 20_000
_CHUNK = 1 << 20
_MAGICS = ((0, b"\x1f\x8b"), (0, b"BZh"), (0, b"\xfd7zXZ\0"), (257, b"ustar"))


def is_tar(path: Path) -> bool:
    """Return whether a file begins as a tar does, packed by gzip, bzip2 or xz or not at all."""
    with path.open("rb") as stream:
        head = stream.read(512)
    return any(head[place : place + len(magic)] == magic for place, magic in _MAGICS)


def unpack(path: Path, folder: Path, progress: Progress) -> None:
    """Write a tar's files below ``folder``.

    Raises:
        Unsupported: It holds what no checkpoint needs, or is not a tar.
        InsufficientSpace: The volume has no room for a file.
        SourceFileNotFound: It is empty.
    """
    count = 0
    try:
        with tarfile.open(path, "r|*") as tar:
            for member in _files(tar):
                count += 1
                if count > MOST_FILES:
                    raise Unsupported(f"the tar holds more than {MOST_FILES} files")
                stream = tar.extractfile(member)
                assert stream is not None
                _write(stream, folder / _name(member), member.size, progress)
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise Unsupported(f"the tar can't be read: {error}") from error
    if not count:
        raise SourceFileNotFound("the tar holds no files")


def root_of(folder: Path) -> Path:
    """Return the folder that holds the checkpoint: where a tar has one folder and only hidden files beside it, that one."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


def _files(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    seen: set[str] = set()
    folders = 0
    for member in tar:
        folders += member.isdir()
        if folders > MOST_FILES:
            # each takes memory, and next to nothing of a packed tar
            raise Unsupported(f"the tar holds more than {MOST_FILES} folders")
        name = _name(member)
        if member.isdir() and name == ".":
            continue
        if not is_inside(name):
            raise Unsupported(f"the tar holds {member.name!r}, which is no plain relative path")
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise Unsupported(f"the tar holds {name!r}, which is a link, a device, or another special file")
        if name in seen:
            raise Unsupported(f"the tar holds {name!r} twice")
        seen.add(name)
        yield member


def _name(member: tarfile.TarInfo) -> str:
    """Return a member's name without the `./` that `tar -c .` puts before it."""
    while member.name.startswith("./"):
        member.name = member.name[2:]
    return member.name or "."


def _write(stream: IO[bytes], target: Path, size: int, progress: Progress) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Unsupported(f"the tar holds {target.name!r} below a file") from None
    volume = os.statvfs(target.parent)
    if size > volume.f_bavail * volume.f_frsize:
        raise InsufficientSpace(f"{target.name} of the tar has {size} bytes, which the volume has no room for")
    try:
        with target.open("xb") as file:
            while chunk := stream.read(_CHUNK):
                file.write(chunk)
                progress.add(len(chunk))
    except FileExistsError:
        raise Unsupported(f"the tar holds {target.name!r} as a file and as a folder") from None
