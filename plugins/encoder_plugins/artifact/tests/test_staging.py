"""Which volumes are taken: by the text of /proc/mounts, and by what a rename does."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.artifact import staging
from encoder_plugins.artifact.staging import filesystem_of, is_object_store
from encoder_plugins.errors import InsufficientSpace, UnsupportedFilesystem
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

Requested = Callable[..., Request]

MOUNTS = r"""overlay / overlay rw 0 0
/dev/sda1 /artifacts ext4 rw 0 0
bucket /artifacts/in\040the\040cloud fuse.gcsfuse rw 0 0
nfs:/export /data nfs4 rw 0 0
mountpoint-s3 /data/s3 fuse rw 0 0
tmpfs /over tmpfs rw 0 0
nfs:/second /over nfs4 rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("overlay", "overlay")),
        ("/artifacts/key", ("/dev/sda1", "ext4")),
        ("/artifacts-2", ("overlay", "overlay")),
        ("/artifacts/in the cloud/key", ("bucket", "fuse.gcsfuse")),
        ("/data/s3/x", ("mountpoint-s3", "fuse")),
        ("/over/x", ("nfs:/second", "nfs4")),
    ],
)
def test_the_closest_mount_holds_a_path(path: str, expected: tuple[str, str]) -> None:
    assert filesystem_of(Path(path), MOUNTS) == expected


@pytest.mark.parametrize(
    ("device", "kind", "refused"),
    [
        ("bucket", "fuse.gcsfuse", True),
        ("s3fs", "fuse.s3fs", True),
        ("mountpoint-s3", "fuse", True),
        ("blobfuse2", "fuse", True),
        ("JuiceFS:volume", "fuse.juicefs", False),
        ("s3-volume", "fuse.glusterfs", False),
        ("/dev/s3", "ext4", False),
        ("nfs:/gcsfuse", "nfs4", False),
    ],
)
def test_object_stores_are_told_apart(device: str, kind: str, refused: bool) -> None:
    assert is_object_store(device, kind) is refused


@pytest.mark.fault(
    "the volume is an object store's mount, or can't rename a folder",
    "`UnsupportedFilesystem`, with the kind of file system",
    "nothing is fetched, nothing stays on the volume; nothing is tried again",
)
@pytest.mark.parametrize(
    ("kind", "refusal", "words"),
    [
        (("s3fs", "fuse.s3fs"), None, r"is fuse\.s3fs \(s3fs\), which has no atomic rename"),
        (("/dev/sda1", "ext4"), errno.ENOTEMPTY, "can't rename a folder: Directory not empty"),
        (("gluster:/x", "fuse.glusterfs"), errno.EXDEV, "can't rename a folder"),
    ],
)
def test_a_prep_refuses_a_volume_without_atomic_rename(
    requested: Requested,
    progress: Progress,
    hub: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: tuple[str, str],
    refusal: int | None,
    words: str,
) -> None:
    request = requested()
    monkeypatch.setattr(staging, "filesystem_of", lambda path, mounts: kind)
    before = hub.requests("demo/tiny")
    if refusal is not None:
        forbid_renames(monkeypatch, refusal)
    with pytest.raises(UnsupportedFilesystem, match=words) as refused:
        prepare(request, progress)
    assert refused.value.code == "UnsupportedFilesystem"
    assert hub.requests("demo/tiny") == before
    assert [path for path in request.output.parent.rglob("*") if path.is_file()] == []


def test_a_rename_that_fails_for_want_of_space_is_told_as_that(
    requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_renames(monkeypatch, errno.ENOSPC)
    with pytest.raises(InsufficientSpace):
        prepare(requested(str(checkpoint)), progress)


def forbid_renames(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def rename(source: object, target: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "rename", rename)
