"""Where an artifact grows until it is whole: locks, room, durability, and the one rename that makes it visible.

Everything unfinished is below `.staging/<key>` beside the artifact, on the same volume; nothing else is ever written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from encoder_plugins.errors import InsufficientSpace, UnsupportedFilesystem

OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

# object stores behind FUSE: they copy a folder file by file and call that a rename
_OBJECT_STORES = ("s3", "gcsfuse", "goofys", "geesefs", "blobfuse", "ossfs", "cosfs", "obsfs", "rclone", "tigrisfs")
_HEADROOM = 1.1


@dataclass(frozen=True, slots=True)
class Staging:
    """The folders of one artifact in the making.

    Attributes:
        root: Everything of this artifact that is unfinished.
        output: Where the artifact will be.
    """

    root: Path
    output: Path

    @classmethod
    def beside(cls, output: Path) -> Staging:
        """Place the staging folder for ``output``."""
        return cls(output.parent / ".staging" / output.name, output)

    @property
    def lock(self) -> Path:
        """The lock file of the process that writes this artifact."""
        return self.root.with_name(f"{self.root.name}.lock")

    def is_there(self) -> bool:
        """Return whether a process writes this artifact, or was killed while it did."""
        return self.root.exists() or self.lock.exists()

    @property
    def artifact(self) -> Path:
        """The folder that becomes the artifact."""
        return self.root / "artifact"

    @property
    def published(self) -> Path:
        """The checkpoint as it was published: what the original library loads."""
        return self.root / "published"

    @property
    def unpickled(self) -> Path:
        """The same with safetensors in the place of pickled weights."""
        return self.root / "unpickled"

    @property
    def auxiliary(self) -> Path:
        """What was taken of further repositories, each in a folder of its own."""
        return self.root / "auxiliary"

    @property
    def label_sets(self) -> Path:
        """The label sets, as servers read them, until the artifact has a model."""
        return self.root / "label_sets"

    @property
    def partial(self) -> Path:
        """Files that are still being fetched."""
        return self.root / "partial"

    @property
    def received(self) -> Path:
        """The list of completely fetched files, for sources that report no hashes."""
        return self.root / "received.jsonl"

    @property
    def document(self) -> Path:
        """A tar, or a list of files, as it came."""
        return self.root / "document"

    @property
    def unpacked(self) -> Path:
        """The files of a tar."""
        return self.root / "unpacked"

    def publish(self) -> None:
        """Make the artifact durable, then visible, in one rename."""
        _sync_tree(self.artifact)
        os.rename(self.artifact, self.output)
        _sync(self.output.parent)

    def set_aside(self) -> None:
        """Take a damaged artifact out of sight, so that a sound one can take its place."""
        aside = self.root / "damaged"
        discard(aside)
        os.rename(self.output, aside)

    def discard(self) -> None:
        """Remove everything that is unfinished."""
        discard(self.root)


def discard(path: Path) -> None:
    """Remove a folder or a file, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def locked(staging: Staging, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the artifact's lock: one writer works, the next waits and finds it done.

    Args:
        staging: Which artifact.
        on_wait: Called once if another process holds the lock.

    Raises:
        UnsupportedFilesystem: The volume has no locks, or this user may not write to it.
    """
    path = staging.lock
    descriptor = _take(path, on_wait)
    try:
        staging.root.mkdir(exist_ok=True)
        yield
    finally:
        _remove_if_empty(staging.root)
        # removed before it is unlocked, so that a process that waits on the old file sees that it is no longer the lock
        path.unlink(missing_ok=True)
        os.close(descriptor)
        # other artifacts of the volume may be in the making
        _remove_if_empty(path.parent)


@contextmanager
def locked_now(staging: Staging) -> Iterator[bool]:
    """Hold the artifact's lock, or yield False if another process does."""

    def give_up() -> None:
        raise _Busy

    try:
        with locked(staging, give_up):
            yield True
    except _Busy:
        yield False


class _Busy(Exception):  # noqa: N818 - never leaves `locked_now`
    """Another process holds the lock."""


def _take(path: Path, on_wait: Callable[[], None]) -> int:
    """Open and lock the lock file; start over where it was removed between the two."""
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                # another process has removed the empty folder in between
                continue
            try:
                _flock(descriptor, on_wait)
                if _is_same_file(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    except PermissionError as error:
        raise UnsupportedFilesystem(
            f"user {os.getuid()} may not write to {path.parent.parent}: set fsGroup, or the volume's owner"
        ) from error
    except OSError as error:
        if error.errno in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
            raise UnsupportedFilesystem(f"{path.parent.parent} has no file locks: {error.strerror}") from error
        if error.errno == errno.EROFS:
            raise UnsupportedFilesystem(f"{path.parent.parent} is read-only") from error
        raise


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _flock(descriptor: int, on_wait: Callable[[], None]) -> None:
    """Lock, telling the caller if that takes waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one that has this name."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def require_space(staging: Staging, needed: int) -> None:
    """Refuse to start what cannot fit, counting what an earlier attempt has already fetched.

    Raises:
        InsufficientSpace: The volume has less than ``needed`` and a tenth more.
    """
    here = sum(path.stat().st_size for path in staging.root.rglob("*") if path.is_file() and not path.is_symlink())
    volume = os.statvfs(staging.root)
    free = volume.f_bavail * volume.f_frsize
    missing = int(needed * _HEADROOM) - here - free
    if missing > 0:
        raise InsufficientSpace(
            f"the checkpoint needs {needed} bytes and {_HEADROOM - 1:.0%} more; {free} are free on the volume"
        )


def require_atomic_rename(staging: Staging) -> None:
    """Refuse a volume on which a half-written artifact could be seen.

    Raises:
        UnsupportedFilesystem: It is an object store, or can't rename a folder that is not empty.
    """
    with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        device, kind = filesystem_of(staging.root.resolve(), mounts.read())
    if is_object_store(device, kind):
        raise UnsupportedFilesystem(
            f"{staging.output.parent} is {kind} ({device}), which has no atomic rename of folders: use a block or NFS volume"
        )
    before, after = staging.root / "rename-before", staging.root / "rename-after"
    try:
        for path in (before, after):
            discard(path)
        before.mkdir()
        (before / "file").touch()
        os.rename(before, after)
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            raise
        raise UnsupportedFilesystem(f"{staging.output.parent} can't rename a folder: {error.strerror}") from error
    discard(after)


def filesystem_of(path: Path, mounts: str) -> tuple[str, str]:
    """Find the device and the type of the file system that holds ``path``, in the text of /proc/mounts."""
    best = (-1, "", "")
    for line in mounts.splitlines():
        device, point, kind = line.split(" ")[:3]
        # the kernel writes blanks in names as octal
        folder = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point))
        # of two mounts on one folder, the later one is seen
        if path.is_relative_to(folder) and len(folder.parts) >= best[0]:
            best = (len(folder.parts), device, kind)
    return best[1], best[2]


def is_object_store(device: str, kind: str) -> bool:
    """Return whether a file system is an object store behind FUSE, by its type or, where that is just `fuse`, its device."""
    if kind != "fuse" and not kind.startswith("fuse."):
        return False
    name = kind.removeprefix("fuse").removeprefix(".") or device
    return any(store in name.lower() for store in _OBJECT_STORES)


def _sync_tree(root: Path) -> None:
    """Bring every file and then every folder below ``root`` to the disk."""
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            _sync(Path(folder, name))
        _sync(Path(folder))


def _sync(path: Path) -> None:
    """Bring one file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
