"""Which volumes are taken: by the text of /proc/mounts, and by what a rename does."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
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
def test_object_stores_are_distinguished(device: str, kind: str, refused: bool) -> None:
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


def test_a_rename_that_fails_for_lack_of_space_is_reported_as_that(
    requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_renames(monkeypatch, errno.ENOSPC)
    with pytest.raises(InsufficientSpace):
        prepare(requested(str(checkpoint)), progress)


def forbid_renames(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def rename(source: object, target: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "rename", rename)


def test_a_volume_that_renames_empty_folders_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, real = staging.Staging.beside(tmp_path / "volume" / "key"), os.rename
    place.root.mkdir(parents=True)

    def rename(source: Path, target: Path) -> None:
        if any(source.iterdir()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(UnsupportedFilesystem, match="volume can't rename a folder: Directory not empty"):
        staging.require_atomic_rename(place)


def test_a_rename_is_tried_again_after_an_attempt_that_was_killed_and_leaves_nothing(tmp_path: Path) -> None:
    place = staging.Staging.beside(tmp_path / "volume" / "key")
    for name in ("rename-before", "rename-after"):
        (place.root / name).mkdir(parents=True)
        (place.root / name / "file").touch()
    staging.require_atomic_rename(place)
    assert list(place.root.iterdir()) == []


def test_each_part_of_an_artifact_in_the_making_has_a_path_of_its_own(tmp_path: Path) -> None:
    place = staging.Staging.beside(tmp_path / "volume" / "key")
    assert place.root == tmp_path / "volume" / ".staging" / "key"
    parts = [
        place.artifact,
        place.published,
        place.unpickled,
        place.auxiliary,
        place.label_sets,
        place.partial,
        place.received,
        place.document,
        place.unpacked,
    ]
    assert len(set(parts)) == len(parts)
    assert {part.parent for part in parts} == {place.root}


def test_an_artifact_is_in_the_making_while_its_folder_or_its_lock_is_there(tmp_path: Path) -> None:
    place = staging.Staging.beside(tmp_path / "volume" / "key")
    assert not place.is_there()
    place.root.mkdir(parents=True)
    assert place.is_there()
    place.discard()
    place.lock.touch()
    assert place.is_there()


def staged(tmp_path: Path) -> staging.Staging:
    """An artifact that is ready to be published."""
    found = staging.Staging.beside(tmp_path / "volume" / "key")
    (found.artifact / "model").mkdir(parents=True)
    (found.artifact / "model" / "weights").write_bytes(b"x")
    (found.artifact / "MANIFEST.json").write_bytes(b"{}")
    return found


def test_every_file_and_folder_is_on_the_disk_before_the_rename_and_the_parent_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = staged(tmp_path)
    events: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        events.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), place.root))
        real_fsync(descriptor)

    def rename(source: Path, target: Path) -> None:
        events.append("rename")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    opened = descriptors()
    place.publish()
    assert descriptors() == opened
    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    assert set(before) == {"artifact/model/weights", "artifact/model", "artifact/MANIFEST.json", "artifact"}
    # a folder's entries before the folder, so that none of them can be lost behind it
    assert before.index("artifact/model/weights") < before.index("artifact/model") < before.index("artifact")
    assert [Path(place.root, path).resolve() for path in after] == [place.output.parent.resolve()]


def test_a_damaged_artifact_makes_room_for_the_next_even_where_one_was_set_aside_before(tmp_path: Path) -> None:
    place = staged(tmp_path)
    for content in ("first", "second"):
        place.output.mkdir()
        (place.output / "file").write_text(content)
        place.set_aside()
        assert not place.output.exists()
    place.publish()
    assert (place.output / "model" / "weights").read_bytes() == b"x"
    place.discard()
    assert not place.root.exists()


def test_a_link_is_removed_and_not_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    for name in ("link", "folder/file", "missing"):
        assert (tmp_path / "folder").is_dir()
        staging.discard(tmp_path / name)
        assert not os.path.lexists(tmp_path / name)
    staging.discard(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.timeout(30)
def test_a_lock_is_gone_before_it_is_released_and_the_folder_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, before, released, real = staging.Staging.beside(tmp_path / "volume" / "key"), descriptors(), [], os.close

    def close(descriptor: int) -> None:
        if ".lock" in os.readlink(f"/proc/self/fd/{descriptor}"):
            # one who waits for this file must not find it to be the lock
            released.append(place.lock.exists())
        real(descriptor)

    with monkeypatch.context() as watched:
        watched.setattr(os, "close", close)
        with staging.locked(place, pytest.fail):
            assert place.lock.exists()
            assert place.root.is_dir()
            with staging.locked_now(place) as mine:
                assert not mine
    # the one that gave up first
    assert released == [True, False]
    assert not place.root.parent.exists()
    assert descriptors() == before
    with pytest.raises(KeyError), staging.locked(place, pytest.fail):
        raise KeyError
    assert not place.root.parent.exists()
    with staging.locked_now(place) as mine:
        assert mine


def test_the_owner_can_open_a_lock_and_one_that_is_removed_meanwhile_is_no_error(tmp_path: Path) -> None:
    place = staging.Staging.beside(tmp_path / "volume" / "key")
    with staging.locked(place, pytest.fail):
        # the next prep Job of the same user opens it to read and write
        assert place.lock.stat().st_mode & 0o600 == 0o600
        place.lock.unlink()
    assert not place.root.parent.exists()


def test_a_folder_that_another_writer_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, real = staging.Staging.beside(tmp_path / "volume" / "key"), os.open
    removed: list[Path] = []

    def open_(path: Any, *rest: Any) -> int:
        if path == place.lock and not removed:
            path.parent.rmdir()
            removed.append(path.parent)
        return real(path, *rest)

    monkeypatch.setattr(os, "open", open_)
    with staging.locked(place, pytest.fail):
        assert removed
        assert place.lock.exists()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EACCES, "may not write to .*volume: set fsGroup"),
        (errno.ENOLCK, "volume has no file locks"),
        (errno.ENOTSUP, "volume has no file locks"),
        (errno.EROFS, "volume is read-only"),
        (errno.EIO, None),
    ],
)
def test_a_volume_without_locks_is_refused_by_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str | None
) -> None:
    place, before = staging.Staging.beside(tmp_path / "volume" / "key"), descriptors()

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UnsupportedFilesystem if says else OSError, match=says), staging.locked(place, pytest.fail):
        pytest.fail("it holds no lock")
    assert descriptors() == before


@pytest.mark.parametrize(
    ("needed", "there", "fits"), [(1000, 0, True), (1001, 0, False), (1100, 110, True), (1101, 110, False)]
)
def test_what_is_there_counts_and_a_tenth_more_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: int, there: int, fits: bool
) -> None:
    place = staging.Staging.beside(tmp_path / "volume" / "key")
    place.partial.mkdir(parents=True)
    (place.partial / "file").write_bytes(bytes(there))
    # a link is no second copy
    (place.root / "link").symlink_to(place.partial / "file")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=11, f_frsize=100))
    if fits:
        staging.require_space(place, needed)
        return
    with pytest.raises(InsufficientSpace, match=f"needs {needed} bytes and 10% more; 1100 are free"):
        staging.require_space(place, needed)


def test_a_lock_that_was_removed_while_it_was_waited_for_is_taken_anew(tmp_path: Path) -> None:
    place, before = staged(tmp_path), descriptors()
    waiting, released, entered = threading.Event(), threading.Event(), []

    def second() -> None:
        with staging.locked(place, waiting.set):
            # the file that this writer waited for has gone with the first writer
            entered.append(released.is_set() and place.lock.exists())

    with ThreadPoolExecutor(1) as pool:
        with staging.locked(place, pytest.fail):
            done = pool.submit(second)
            assert waiting.wait(30)
            with pytest.raises(TimeoutError):
                done.result(0.3)
            released.set()
        done.result(30)
    assert descriptors() == before
    assert entered == [True]
    assert not place.lock.exists()
