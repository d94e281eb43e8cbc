"""Which volumes are taken, by the text of /proc/mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_plugins.staging import filesystem_of, is_object_store

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
