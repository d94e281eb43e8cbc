"""Unpacks a tar that came from somewhere else: plain files below one folder, and nothing else.

The tar is read once, from its beginning, a chunk at a time. It may be packed in several streams, one behind the other, as
parallel packers write it, of which tarfile itself would read the first one only. Links, devices, sparse files, absolute and
climbing paths are refused by their names, and no file is begun that the volume has no room for.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from encoder_plugins.artifact.manifest import is_inside
from encoder_plugins.errors import InsufficientSpace, SourceFileNotFound, Unsupported
from encoder_plugins.prep.progress import Progress

MOST_FILES = 20_000
_CHUNK = 1 << 20
# what may fill the last record of a tar
_MOST_BEHIND = 1 << 20
# how a tar that is not packed is recognised, and where
_PLACE, _TAR = 257, b"ustar"
_PACKERS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}


def is_tar(path: Path) -> bool:
    """Return whether a file begins as a tar does, packed by gzip, bzip2 or xz or not at all."""
    with path.open("rb") as stream:
        head = stream.read(512)
    return head.startswith(tuple(_PACKERS)) or head[_PLACE:].startswith(_TAR)


def unpack(path: Path, folder: Path, progress: Progress) -> None:
    """Write a tar's files below ``folder``.

    Raises:
        Unsupported: It holds what no checkpoint needs, or is not a tar.
        InsufficientSpace: The volume has no room for a file.
        SourceFileNotFound: It is empty.
    """
    count = 0
    try:
        with _opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in _files(tar):
                count += 1
                if count > MOST_FILES:
                    raise Unsupported(f"the tar holds more than {MOST_FILES} files")
                content = tar.extractfile(member)
                assert content is not None
                _write(content, folder / _name(member), member.size, progress)
            # a packed stream says at its very end what its bytes were
            if len(stream.read(_MOST_BEHIND + 1)) > _MOST_BEHIND:
                raise Unsupported("the tar goes on behind its end")
    except (tarfile.TarError, EOFError, UnicodeError, zlib.error, lzma.LZMAError) as error:
        raise Unsupported(f"the tar can't be read: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        # not the disk's, but that of bytes that gzip or bzip2 did not write
        raise Unsupported(f"the tar can't be read: {error}") from error
    if not count:
        raise SourceFileNotFound("the tar holds no files")


def _opened(path: Path) -> IO[bytes]:
    """Return the bytes of a tar, unpacked."""
    with path.open("rb") as stream:
        head = stream.read(max(map(len, _PACKERS)))
    packer = next((packer for magic, packer in _PACKERS.items() if head.startswith(magic)), None)
    opened: IO[bytes] = path.open("rb") if packer is None else packer(path)
    return opened


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
