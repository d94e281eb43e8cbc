"""A checkpoint in a folder, taken by hand: what is listed, what is refused, and what may change meanwhile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import errors
from encoder_plugins.artifact.manifest import canonical_json
from encoder_plugins.prep import checksums
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources.local import FolderSource


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "folder"
    (found / "b").mkdir(parents=True)
    (found / "c").write_bytes(b"333")
    (found / "b" / "a").write_bytes(b"1")
    return found


def quiet() -> Progress:
    return Progress(lambda _: None)


def entry(path: str, content: bytes) -> SourceFile:
    return SourceFile(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def test_a_folder_is_listed_with_a_revision_of_its_content(folder: Path) -> None:
    (folder / "b" / "link").symlink_to("../c")
    lines: list[dict[str, object]] = []
    source = FolderSource(folder, None)
    expected = (entry("b/a", b"1"), entry("b/link", b"333"), entry("c", b"333"))
    assert source.listing(Progress(lines.append)) == expected
    assert (lines[0]["phase"], lines[0]["total"], lines[-1]["bytes"]) == ("listing", 7, 7)
    listed = canonical_json([[file.path, file.size, file.sha256] for file in expected])
    assert source.revision == hashlib.sha256(listed).hexdigest()
    assert source.describe() == {"kind": "pvc", "revision": source.revision}
    assert source.completed(expected[0], quiet()) is expected[0]
    assert FolderSource(folder, source.revision).listing(quiet()) == expected
    other = FolderSource(folder, "other")
    assert (other.revision, FolderSource(folder, None).revision) == ("other", "")
    with pytest.raises(errors.ChecksumMismatch, match=f"has revision {source.revision}, expected other"):
        other.listing(quiet())


def test_a_folder_without_files_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name, says in (("empty", "is empty"), ("file", "is not a folder"), ("nowhere", "is not a folder")):
        with pytest.raises(errors.SourceFileNotFound, match=says):
            FolderSource(tmp_path / name, None).listing(quiet())


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("/etc/hostname", "is a link that leaves the folder"),
        ("../outside", "is a link that leaves the folder"),
        ("../folder2", "is a link that leaves the folder"),
        ("b", "is a link to a folder"),
        (".", "is a link to a folder"),
        ("nowhere", "is neither a file nor a folder"),
        ("entry", "is neither a file nor a folder"),
        ("pipe", "is neither a file nor a folder"),
    ],
)
@pytest.mark.parametrize("below", ["", "b"])
def test_what_is_no_file_of_the_folder_is_refused(folder: Path, target: str, says: str, below: str) -> None:
    (folder.parent / "outside").touch()
    (folder.parent / "folder2").mkdir()
    if target == "pipe":
        os.mkfifo(folder / below / "entry")
    else:
        relative = target if target.startswith("/") else os.path.join("..", target) if below else target
        (folder / below / "entry").symlink_to(relative)
    with pytest.raises(errors.Unsupported, match=says) as caught:
        FolderSource(folder, None).listing(quiet())
    assert str(caught.value).startswith(f"{below}/entry" if below else "entry")


def test_a_snapshot_of_the_hubs_cache_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0a1b").write_bytes(b"{}")
    snapshot = tmp_path / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/0a1b")
    with pytest.raises(
        errors.Unsupported, match=r"config\.json is a link that leaves the folder .*cp -rL.*--local-dir"
    ):
        FolderSource(snapshot, None).listing(quiet())


@pytest.mark.parametrize("name", [b"\xff", b"a\nb"])
def test_a_name_that_no_message_can_hold_is_refused(folder: Path, name: bytes) -> None:
    (folder / os.fsdecode(name)).touch()
    with pytest.raises(errors.Unsupported, match="which is not a plain relative path"):
        FolderSource(folder, None).listing(quiet())


@pytest.mark.parametrize("name", ["b", "c"])
def test_what_this_user_may_not_read_is_refused_by_its_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (folder / "lost+found").mkdir()

    def refused(real: Callable[..., Any], *names: str) -> Callable[..., Any]:
        def call(path: str | Path, *arguments: Any) -> Any:
            if Path(path).name in names:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *arguments)

        return call

    # root may read anything, so the refusal is made here
    monkeypatch.setattr(os, "scandir", refused(os.scandir, "lost+found", name))
    monkeypatch.setattr(checksums, "sha256_of", refused(checksums.sha256_of, name))
    with pytest.raises(errors.Unsupported, match=f"may not read {folder / name}"):
        FolderSource(folder, None).listing(quiet())


def test_a_link_to_the_folder_itself_is_the_folder(folder: Path) -> None:
    (folder.parent / "link").symlink_to("folder")
    assert len(FolderSource(folder.parent / "link", None).listing(quiet())) == 2


def test_a_copy_is_checked_and_removed_if_the_file_has_changed(folder: Path, tmp_path: Path) -> None:
    source, partial = FolderSource(folder, None), tmp_path / "partial"
    listed = source.listing(quiet())[1]
    partial.write_bytes(b"left over, and longer")
    lines: list[dict[str, object]] = []
    progress = Progress(lines.append)
    progress.start("download", 3)
    source.fetch(listed, partial, progress)
    assert (partial.read_bytes(), lines[-1]["bytes"]) == (b"333", 3)
    (folder / "c").write_bytes(b"444")
    with pytest.raises(errors.ChecksumMismatch, match="c hashes to"):
        source.fetch(listed, partial, quiet())
    assert not partial.exists()
