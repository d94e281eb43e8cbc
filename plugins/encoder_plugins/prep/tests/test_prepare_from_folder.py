"""prep from a folder of the user's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.sources.local import FolderSource
from encoder_plugins.prep.tests import tiny_checkpoint

Requested = Callable[..., Request]
LEFT_OUT = ("README.md", "onnx/model.onnx", "pytorch_model.bin", "train_script.py")


def test_a_folder_is_copied_and_named_by_its_content(
    requested: Requested, progress: Progress, checkpoint: Path, tmp_path: Path
) -> None:
    request = requested(str(checkpoint))
    prepared = prepare(request, progress)
    source = manifest.verify(request.output).source
    assert source == {
        "kind": "pvc",
        "revision": prepared.revision,
        "published": manifest.tree_digest(
            tiny_checkpoint.as_published(request.output / "model", tmp_path / "published")
        ),
    }
    assert len(prepared.revision) == 64
    copied = request.output / "model" / "model.safetensors"
    assert copied.read_bytes() == (checkpoint / "model.safetensors").read_bytes()


def test_a_complete_artifact_does_not_need_its_source(
    requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    first = prepare(requested(str(checkpoint)), progress)
    lines: list[dict[str, object]] = []
    assert prepare(requested("/nowhere"), Progress(lines.append)) == first
    # neither is the lock taken, for which the volume would have to be writable
    assert lines == []


@pytest.mark.parametrize(
    ("further", "named"),
    [
        ([], "README.md, onnx/model.onnx, pytorch_model.bin, train_script.py"),
        (["zz"], "README.md, onnx/model.onnx, pytorch_model.bin, train_script.py, zz"),
        (["a.h5", "b.h5", "zz"], "README.md, a.h5, b.h5, onnx/model.onnx, pytorch_model.bin and 2 more"),
    ],
)
def test_phases_bytes_and_the_first_files_that_are_left_out_are_reported(
    requested: Requested, recorder: list[Path], checkpoint: Path, further: list[str], named: str
) -> None:
    for name in further:
        (checkpoint / name).touch()
    lines: list[dict[str, Any]] = []
    request = requested(str(checkpoint))
    prepare(request, Progress(lines.append))
    phases = list(dict.fromkeys(line["phase"] for line in lines))
    assert phases == ["listing", "download", "convert", "reference", "seal", "publish", "clean"]
    began = next(line for line in lines if line["phase"] == "download")
    others = [checkpoint / name for name in (*LEFT_OUT, *further)]
    total = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file() and path not in others)
    assert (began["total"], began["leftOut"]) == (total, named)


def test_nothing_is_reported_as_left_out_where_all_is_taken(
    requested: Requested, recorder: list[Path], checkpoint: Path
) -> None:
    for name in LEFT_OUT:
        (checkpoint / name).unlink()
    lines: list[dict[str, Any]] = []
    prepare(requested(str(checkpoint)), Progress(lines.append))
    assert not any("leftOut" in line for line in lines)


def test_content_decides_the_revision_and_the_place_does_not(
    requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    revision = prepare(requested(str(checkpoint)), progress).revision
    moved = checkpoint.rename(checkpoint.with_name("moved"))
    other = Request(
        **{name: getattr(requested(str(moved)), name) for name in Request.__slots__}
        | {"output": checkpoint.with_name("other")}
    )
    assert prepare(other, progress).revision == revision
    (moved / "vocab.txt").write_text("changed")
    changed = Request(
        **{name: getattr(other, name) for name in Request.__slots__} | {"output": checkpoint.with_name("third")}
    )
    assert prepare(changed, progress).revision != revision


def test_another_content_than_the_requested_one_is_refused(
    requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    with pytest.raises(errors.ChecksumMismatch, match="expected 00"):
        prepare(requested(str(checkpoint), revision="0" * 64), progress)


def test_links_to_files_of_the_folder_are_followed(requested: Requested, progress: Progress, checkpoint: Path) -> None:
    (checkpoint / "vocab.txt").rename(checkpoint / "real")
    (checkpoint / "vocab.txt").symlink_to("real")
    request = requested(str(checkpoint))
    prepare(request, progress)
    assert not (request.output / "model" / "vocab.txt").is_symlink()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "/etc", "onnx", "nowhere/at/all"])
def test_links_that_leave_the_folder_are_refused(
    requested: Requested, progress: Progress, checkpoint: Path, target: str
) -> None:
    (checkpoint.parent / "outside").write_text("secret")
    (checkpoint / "link.json").symlink_to(target)
    with pytest.raises(errors.Unsupported, match=r"link\.json"):
        prepare(requested(str(checkpoint)), progress)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_named(requested: Requested, progress: Progress, checkpoint: Path, name: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 90868376\n"
    (checkpoint / name).write_text(pointer)
    with pytest.raises(errors.Unsupported, match=f"{name} is a pointer of git LFS"):
        prepare(requested(str(checkpoint)), progress)
    # a pointer is short, and what is longer is refused for what it is
    (checkpoint / name).write_text(pointer.ljust(1024))
    with pytest.raises(errors.PrepareError, match=name) as caught:
        prepare(requested(str(checkpoint)), progress)
    assert "git LFS" not in str(caught.value)


def test_a_file_that_the_plugin_reads_first_may_be_missing(
    requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    (checkpoint / "modules.json").unlink()
    with pytest.raises(errors.PrepareError, match=r"modules\.json"):
        prepare(requested(str(checkpoint)), progress)


def test_a_missing_shard_is_named_before_the_others_are_fetched(
    requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (checkpoint / "model.safetensors").rename(checkpoint / shards[0])
    index = {"weight_map": {f"tensor{number}": shard for number, shard in enumerate(shards)}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(errors.SourceFileNotFound, match=f"{shards[1]} is missing: model.safetensors.index.json"):
        prepare(requested(str(checkpoint)), progress)


def test_a_missing_folder_is_not_found(requested: Requested, progress: Progress, tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(errors.SourceFileNotFound):
            prepare(requested(str(path)), progress)


def test_code_of_the_repository_is_refused(
    requested: Requested, progress: Progress, checkpoint: Path, recorder: list[Path]
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "modeling.Model"}}))
    with pytest.raises(errors.RemoteCodeRefused, match="auto_map"):
        prepare(requested(str(checkpoint)), progress)
    assert recorder == []


def test_the_plugin_refuses_before_the_weights_are_fetched(
    requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, fetched = FolderSource.fetch, []

    def noted(source: FolderSource, file: SourceFile, partial: Path, progress: Progress) -> None:
        fetched.append(file.path)
        fetch(source, file, partial, progress)

    monkeypatch.setattr(FolderSource, "fetch", noted)
    (checkpoint / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 8, "pooling_mode": "max"})
    )
    request = requested(str(checkpoint))
    with pytest.raises(errors.Unsupported, match="pooling_mode"):
        prepare(request, progress)
    assert "config.json" in fetched
    assert "model.safetensors" not in fetched
    assert not request.output.exists()
    assert not (request.output.parent / ".staging").exists()
