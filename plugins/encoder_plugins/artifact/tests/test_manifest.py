"""An artifact is accepted only byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.errors import ChecksumMismatch, SourceFileNotFound, Unsupported


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    folder = tmp_path / "key"
    (folder / "model" / "1_Pooling").mkdir(parents=True)
    (folder / "reference").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(os.urandom(300_000))
    (folder / "model" / "1_Pooling" / "config.json").write_text("{}")
    (folder / "reference" / "cases.json").write_text("[]")
    write_manifest(folder)
    return folder


def write_manifest(folder: Path) -> artifact.Manifest:
    manifest = artifact.build(
        folder, key="key", plugin="p", prep_version=1, licence_note=None, source={"kind": "pvc", "revision": "r"}
    )
    (folder / artifact.MANIFEST).write_bytes(manifest.encode())
    return manifest


def test_a_sound_artifact_passes_and_has_its_digests(sound: Path) -> None:
    manifest = artifact.verify(sound)
    assert artifact.verify(sound, manifest.digest) == manifest == artifact.read(sound)
    assert manifest.digest == artifact.digest((sound / "MANIFEST.json").read_bytes())
    assert [entry.path for entry in manifest.files] == [
        "model/1_Pooling/config.json",
        "model/model.safetensors",
        "reference/cases.json",
    ]
    assert manifest.size == 300_000 + 4


def test_the_reference_has_a_digest_of_its_own(sound: Path) -> None:
    before = artifact.read(sound)
    (sound / "model" / "model.safetensors").write_bytes(b"other weights")
    after = write_manifest(sound)
    assert after.digest != before.digest
    assert after.reference_digest == before.reference_digest
    (sound / "reference" / "cases.json").write_text("[1]")
    assert write_manifest(sound).reference_digest != before.reference_digest


def test_the_digest_of_a_folder_is_that_of_all_its_files_or_of_some(sound: Path) -> None:
    some = ["model/1_Pooling/config.json", "reference/cases.json"]
    every, before = artifact.tree_digest(sound), artifact.tree_digest(sound, some)
    assert artifact.tree_digest(sound, some[::-1]) == before != every
    (sound / "model" / "model.safetensors").write_bytes(b"other weights")
    assert artifact.tree_digest(sound, some) == before
    assert artifact.tree_digest(sound) != every


def change_byte(folder: Path) -> None:
    with (folder / "model" / "model.safetensors").open("r+b") as stream:
        stream.seek(150_000)
        byte = stream.read(1)
        stream.seek(150_000)
        stream.write(bytes([byte[0] ^ 1]))


def link_to_the_same_content(folder: Path) -> None:
    moved = folder.parent / "elsewhere"
    (folder / "model" / "model.safetensors").rename(moved)
    (folder / "model" / "model.safetensors").symlink_to(moved)


def link_a_folder(folder: Path) -> None:
    moved = folder.parent / "elsewhere"
    (folder / "model" / "1_Pooling").rename(moved)
    (folder / "model" / "1_Pooling").symlink_to(moved)


def link_the_manifest(folder: Path) -> None:
    moved = folder.parent / "elsewhere"
    (folder / artifact.MANIFEST).rename(moved)
    (folder / artifact.MANIFEST).symlink_to(moved)


TAMPERED: list[Callable[[Path], object]] = [
    change_byte,
    link_to_the_same_content,
    link_a_folder,
    link_the_manifest,
    lambda folder: (folder / "model" / "model.safetensors").unlink(),
    lambda folder: (folder / "model" / "model.safetensors").write_bytes(b""),
    lambda folder: (folder / "model" / "surplus.py").touch(),
    lambda folder: (folder / "model" / "surplus").mkdir(),
    lambda folder: os.mkfifo(folder / "model" / "pipe"),
    lambda folder: (folder / artifact.MANIFEST).unlink(),
    lambda folder: (folder / artifact.MANIFEST).write_bytes(b"{"),
    lambda folder: (folder / artifact.MANIFEST).write_bytes(b"[]"),
    lambda folder: (folder / artifact.MANIFEST).write_bytes(b"[" * 100_000),
    lambda folder: (folder / artifact.MANIFEST).write_bytes(b'{"manifest":2}'),
    lambda folder: (folder / artifact.MANIFEST).write_bytes((folder / artifact.MANIFEST).read_bytes() + b"\n"),
]


@pytest.mark.parametrize("tamper", TAMPERED)
def test_a_changed_artifact_is_refused(sound: Path, tamper: Callable[[Path], object]) -> None:
    tamper(sound)
    with pytest.raises(ChecksumMismatch):
        artifact.verify(sound)


def test_a_link_is_refused_and_no_manifest_is_made_without_what_it_names(sound: Path) -> None:
    link_a_folder(sound)
    with pytest.raises(ChecksumMismatch, match="model/1_Pooling is a link"):
        write_manifest(sound)


def test_a_manifest_behind_a_link_is_not_read(sound: Path) -> None:
    link_the_manifest(sound)
    with pytest.raises(ChecksumMismatch, match=r"has no MANIFEST\.json"):
        artifact.read(sound)


def test_the_digest_covers_a_manifest_that_was_rewritten_to_fit(sound: Path) -> None:
    expected = artifact.read(sound).digest
    change_byte(sound)
    write_manifest(sound)
    artifact.verify(sound)
    with pytest.raises(ChecksumMismatch, match=expected):
        artifact.verify(sound, expected)


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "model/../../x", "model//x", "./x", "", ".", "a\\b", "a\nb", "a\udcff"]
)
def test_a_path_that_leaves_the_artifact_is_refused(sound: Path, path: str) -> None:
    assert not artifact.is_inside(path)
    raw = json.loads((sound / artifact.MANIFEST).read_bytes())
    raw["files"] = [{"path": path, "size": 0, "sha256": "0" * 64}]
    (sound / artifact.MANIFEST).write_bytes(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(ChecksumMismatch, match=r"not canonical|damaged"):
        artifact.verify(sound)


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files[::-1],
        lambda files: [files[0], *files],
        lambda files: [{"path": artifact.MANIFEST, "size": 0, "sha256": "0" * 64}, *files],
    ],
)
def test_a_list_of_files_has_one_order_and_no_file_twice(sound: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    raw = json.loads((sound / artifact.MANIFEST).read_bytes())
    (sound / artifact.MANIFEST).write_bytes(artifact.canonical_json(raw | {"files": change(raw["files"])}))
    with pytest.raises(ChecksumMismatch, match="not canonical"):
        artifact.verify(sound)


def replace_by_a_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("swap", [replace_by_a_link, replace_by_a_pipe])
def test_what_takes_a_files_place_after_the_listing_is_not_hashed(
    sound: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path], object]
) -> None:
    listed = artifact._walk

    def walk(root: Path) -> tuple[list[str], list[str]]:
        found = listed(root)
        swap(root / "model" / "model.safetensors")
        return found

    monkeypatch.setattr(artifact, "_walk", walk)
    with pytest.raises((ChecksumMismatch, OSError), match=r"not a regular file|symbolic link"):
        artifact.verify(sound)


@pytest.mark.parametrize(("count", "more"), [(3, ""), (5, " and 2 more")])
def test_a_message_names_three_files_and_counts_the_others(sound: Path, count: int, more: str) -> None:
    for number in range(count):
        (sound / "model" / f"added{number}").touch()
    surplus = f"model/added0, model/added1, model/added2{more} is not in MANIFEST.json"
    with pytest.raises(ChecksumMismatch, match=surplus):
        artifact.verify(sound)


def test_a_later_layout_is_not_mistaken_for_damage(sound: Path) -> None:
    (sound / artifact.MANIFEST).write_bytes(artifact.canonical_json({"manifest": 3, "blocks": []}))
    with pytest.raises(Unsupported, match="layout 3"):
        artifact.verify(sound)


def test_a_link_in_the_place_of_an_artifact_is_refused(sound: Path) -> None:
    link = sound.with_name("link")
    link.symlink_to(sound)
    with pytest.raises(ChecksumMismatch):
        artifact.verify(link)
    with pytest.raises(ChecksumMismatch):
        artifact.verify(sound / artifact.MANIFEST)


def test_a_folder_that_does_not_exist_is_missing_and_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(SourceFileNotFound, match="nowhere does not exist"):
        artifact.read(tmp_path / "nowhere")


def test_canonical_json_is_one_text_for_one_value() -> None:
    assert artifact.canonical_json({"b": [1, "é"], "a": None}) == '{"a":null,"b":[1,"é"]}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        artifact.canonical_json(float("nan"))


def test_the_check_needs_only_the_standard_library() -> None:
    program = "import sys, encoder_plugins.artifact.manifest; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pydantic", "safetensors", "torch", "vllm"} & set(loaded)
