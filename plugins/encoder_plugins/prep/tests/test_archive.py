"""Tars that came from somewhere else, unpacked by hand: what is taken, and what is refused by its name or its size."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from encoder_plugins.errors import InsufficientSpace, SourceFileNotFound, Unsupported
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources import archive

Member = tuple[str, bytes] | tuple[str, bytes, dict[str, Any]]
FOLDER = {"type": tarfile.DIRTYPE}


def packed(tmp_path: Path, *members: Member, mode: Any = "w", **options: Any) -> Path:
    target = tmp_path / "a.tar"
    with tarfile.open(target, mode, **options) as tar:
        for name, content, *fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in (fields[0] if fields else {}).items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))
    return target


def unpacked(tar: Path) -> dict[str, bytes]:
    """Return the files that come out of a tar, by path."""
    folder = tar.with_name("out")
    folder.mkdir()
    archive.unpack(tar, folder, Progress(lambda _: None))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_plain_files_are_taken_with_and_without_what_tar_puts_before_their_names(tmp_path: Path) -> None:
    members: tuple[Member, ...] = (
        (".", b"", FOLDER),
        ("./a", b"1"),
        ("././b/c", b"22"),
        ("b", b"", FOLDER),
        ("d/e", b""),
    )
    assert unpacked(packed(tmp_path, *members)) == {"a": b"1", "b/c": b"22", "d/e": b""}


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (("x", b"2"), "holds 'x' twice"),
        (("./x", b"2"), "holds 'x' twice"),
        (("x/y", b"2"), "holds 'y' below a file"),
        (("x/y/z", b"2"), "holds 'z' below a file"),
        (("folder", b"2"), "holds 'folder' as a file and as a folder"),
        (("../x", b"2"), "no plain relative path"),
        (("/x", b"2"), "no plain relative path"),
        ((".", b"2"), "no plain relative path"),
        (("./../x", b"", FOLDER), "no plain relative path"),
        (("l", b"", {"type": tarfile.SYMTYPE, "linkname": "x"}), "link, a device, or another special file"),
    ],
)
def test_a_member_is_refused_by_its_name_or_kind(tmp_path: Path, second: Member, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        unpacked(packed(tmp_path, ("x", b"1"), ("folder/file", b"1"), second))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "out"]


def test_a_tar_may_have_as_many_files_as_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 2)
    members: list[Member] = [("a", b""), ("b", b""), ("c", b""), ("folder", b"", FOLDER)]
    assert len(unpacked(packed(tmp_path, members[0], members[3], members[1]))) == 2
    with pytest.raises(Unsupported, match="more than 2 files"):
        archive.unpack(packed(tmp_path, *members[:3]), tmp_path / "second", Progress(lambda _: None))


def test_a_tar_may_have_as_many_folders_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 2)
    folders: list[Member] = [("folder", b"", FOLDER)] * 2
    assert len(unpacked(packed(tmp_path, *folders, ("a", b"")))) == 1
    with pytest.raises(Unsupported, match="more than 2 folders"):
        archive.unpack(packed(tmp_path, *folders, *folders), tmp_path / "second", Progress(lambda _: None))


def test_a_small_tar_of_very_many_folders_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("folder")
    info.type = tarfile.DIRTYPE
    (tmp_path / "a.tar").write_bytes(info.tobuf() * 20_001)
    with pytest.raises(Unsupported, match="more than 20000 folders"):
        unpacked(tmp_path / "a.tar")


def test_a_file_may_fill_the_volume_and_not_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=3, f_frsize=2))
    assert unpacked(packed(tmp_path, ("a", bytes(6)))) == {"a": bytes(6)}
    with pytest.raises(InsufficientSpace, match="b of the tar has 7 bytes"):
        archive.unpack(packed(tmp_path, ("b", bytes(7))), tmp_path / "second", Progress(lambda _: None))
    assert not (tmp_path / "second" / "b").exists()


@pytest.mark.parametrize("content", [b"", bytes(1024), b"a text", b"\x1f\x8b broken"])
def test_what_cannot_be_read_or_holds_no_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises((Unsupported, SourceFileNotFound), match=r"can't be read|holds no files"):
        archive.unpack(tmp_path / "a.tar", tmp_path, Progress(lambda _: None))


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("packer", PACKERS)
def test_all_streams_of_a_packed_tar_are_read(tmp_path: Path, packer: str) -> None:
    # as parallel packers write them; the first one ends where a file ends, the second one within a file
    content = random.Random(0).randbytes(30_000)
    tar = packed(tmp_path, ("a", b"1"), ("b", content)).read_bytes()
    parts = (tar[:1024], tar[1024:9_000], tar[9_000:])
    (tmp_path / "a.tar").write_bytes(b"".join(map(PACKERS[packer], parts)))
    assert unpacked(tmp_path / "a.tar") == {"a": b"1", "b": content}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("damage", ["cut", "changed", "followed by something else"])
def test_a_packed_tar_that_is_damaged_is_refused(tmp_path: Path, packer: str, damage: str) -> None:
    whole = PACKERS[packer](packed(tmp_path, ("a", random.Random(0).randbytes(30_000))).read_bytes())
    middle = len(whole) // 2
    damaged = {
        "cut": whole[:middle],
        "changed": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
        "followed by something else": whole[:middle] + whole[:middle],
    }
    (tmp_path / "a.tar").write_bytes(damaged[damage])
    with pytest.raises(Unsupported, match="can't be read"):
        unpacked(tmp_path / "a.tar")


def test_a_tar_ends_within_its_last_record(tmp_path: Path) -> None:
    tar = packed(tmp_path, ("a", b"1")).read_bytes()
    (tmp_path / "a.tar").write_bytes(tar + bytes(1 << 20))
    assert unpacked(tmp_path / "a.tar") == {"a": b"1"}
    (tmp_path / "a.tar").write_bytes(gzip.compress(tar + bytes(3 << 20)))
    with pytest.raises(Unsupported, match="goes on behind its end"):
        archive.unpack(tmp_path / "a.tar", tmp_path / "second", Progress(lambda _: None))


def test_an_error_of_the_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    tar = packed(tmp_path, ("a", b"1"))
    monkeypatch.setattr(archive, "_write", broken)
    with pytest.raises(OSError, match="broken") as raised:
        unpacked(tar)
    assert not isinstance(raised.value, Unsupported)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    # the header of an extended name that claims UTF-8 and is not
    tar = packed(tmp_path, ("ü" * 200, b"1"), format=tarfile.PAX_FORMAT)
    tar.write_bytes(tar.read_bytes().replace("ü".encode() * 200, b"\xff\xfe" * 200))
    with pytest.raises(Unsupported):
        unpacked(tar)


def test_the_bytes_that_were_written_are_reported_a_part_of_a_large_file_at_a_time(tmp_path: Path) -> None:
    counts: list[int] = []
    progress = SimpleNamespace(add=counts.append)
    archive.unpack(packed(tmp_path, ("a", bytes(3)), ("b", bytes(3 << 20))), tmp_path / "out", cast(Progress, progress))
    assert sum(counts) == 3 + (3 << 20)
    assert max(counts) <= 1 << 20


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_is_recognised_by_how_it_begins(tmp_path: Path, mode: str) -> None:
    assert archive.is_tar(packed(tmp_path, ("a", b"1"), mode=mode))
    for other in (b"", b"0" * 64 + b"  a\n", b"PK\x03\x04", b" \x1f\x8b"):
        (tmp_path / "other").write_bytes(other)
        assert not archive.is_tar(tmp_path / "other")


def test_the_checkpoint_is_the_only_folder_or_everything(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "._one").touch()
    assert archive.root_of(tmp_path) == tmp_path / "one"
    (tmp_path / "two").mkdir()
    assert archive.root_of(tmp_path) == tmp_path
    only = tmp_path / "one"
    (only / "file").touch()
    assert archive.root_of(only) == only
