"""What a prep reports, keeps and closes, and by what the next one finds its artifact again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.staging import Staging
from encoder_plugins.models.sentence_transformer.checkpoint import SentenceTransformerCheckpoint
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Auxiliary, Request
from encoder_plugins.prep.sources.local import FolderSource

Requested = Callable[..., Request]


def test_an_artifact_of_a_branch_is_found_by_any_name_that_may_move(requested: Requested, progress: Progress) -> None:
    request = requested(revision="main", allow_mutable_revision=True)
    first = prepare(request, progress)
    file = request.output / manifest.MANIFEST
    os.utime(file, (1, 1))
    lines: list[dict[str, Any]] = []
    assert prepare(request, Progress(lines.append)) == first
    assert lines == []
    # garbage collection goes by it
    assert file.stat().st_mtime > 1
    with pytest.raises(errors.Unsupported, match="holds another artifact"):
        prepare(requested(revision="main"), progress)


def test_an_auxiliary_repository_of_a_hub_is_reported_and_found_by_its_commit(
    requested: Requested, lines: list[dict[str, Any]], progress: Progress, monkeypatch: pytest.MonkeyPatch, hub: Any
) -> None:
    # as if the format had a use for it
    monkeypatch.setattr(SentenceTransformerCheckpoint, "check", lambda *_: None)
    request = requested(auxiliary=(Auxiliary("demo/tiny", hub.revision),))
    first = prepare(request, progress)
    (auxiliary,) = manifest.read(request.output).source["auxiliary"]
    assert (auxiliary["repo"], auxiliary["revision"]) == ("demo/tiny", hub.revision)
    began = [line for line in lines if line["phase"] == "listing" or "total" in line]
    assert (began[0]["phase"], began[0]["message"]) == ("listing", "auxiliary demo/tiny")
    # texts of the auxiliary repository before the checkpoint is listed
    assert began[1]["phase"] == "download"
    assert 0 < began[1]["total"] < (request.output / "model" / "model.safetensors").stat().st_size
    assert prepare(request, progress) == first
    with pytest.raises(errors.Unsupported, match=r"another artifact \(auxiliary: "):
        prepare(replace(request, auxiliary=(Auxiliary("demo/tiny", hub.second_revision),)), progress)


@pytest.mark.parametrize("fails", [False, True])
def test_every_source_is_closed(
    requested: Requested,
    progress: Progress,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    (further := tmp_path / "further").mkdir()
    (further / "config.json").write_text("{}")
    closed: list[FolderSource] = []
    monkeypatch.setattr(FolderSource, "close", lambda source: closed.append(source))
    if not fails:
        monkeypatch.setattr(SentenceTransformerCheckpoint, "check", lambda *_: None)
    request = requested(str(checkpoint), auxiliary=(Auxiliary(str(further)),))
    if fails:
        with pytest.raises(errors.Unsupported):
            prepare(request, progress)
    else:
        prepare(request, progress)
    assert len(closed) == 2


def test_a_failure_of_the_volume_is_raised_as_it_is_and_what_was_taken_is_kept(
    requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, fetched = FolderSource.fetch, list[str]()

    def failing(source: FolderSource, file: SourceFile, partial: Path, progress: Progress) -> None:
        if len(fetched) == 3:
            raise OSError(errno.EIO, "the disk is ill")
        fetch(source, file, partial, progress)
        fetched.append(file.path)

    monkeypatch.setattr(FolderSource, "fetch", failing)
    request = requested(str(checkpoint))
    with pytest.raises(OSError, match="the disk is ill"):
        prepare(request, progress)
    published = Staging.beside(request.output).published
    assert sorted(str(path.relative_to(published)) for path in published.rglob("*") if path.is_file()) == sorted(
        fetched
    )


def test_bytes_of_another_version_of_a_file_are_not_continued(
    requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[str, Any] = {}
    names: list[str] = []
    listing = FolderSource.listing

    def listed(source: FolderSource, progress: Progress) -> tuple[SourceFile, ...]:
        return tuple(replace(file, **({"sha256": None} | known)) for file in listing(source, progress))

    def noted(source: FolderSource, file: SourceFile, partial: Path, progress: Progress) -> None:
        names.append(partial.name)
        raise errors.DownloadFailed("the way to it failed")

    monkeypatch.setattr(FolderSource, "listing", listed)
    monkeypatch.setattr(FolderSource, "fetch", noted)
    for known in (  # noqa: B007 - `listed` reads it
        {},
        {"tag": "1"},
        {"tag": "2"},
        {"git_sha1": "b" * 40, "tag": "1"},
        {"sha256": "c" * 64},
    ):
        with pytest.raises(errors.DownloadFailed):
            prepare(requested(str(checkpoint)), progress)
    assert len(set(names)) == len(names) == 5
    # what a hash names is the same wherever it is
    assert names[3:] == ["b" * 40, "c" * 64]


@pytest.mark.parametrize(
    ("path", "checked"), [("pytorch_model.bin", "published"), ("1_Pooling/pytorch_model.bin", "unpickled")]
)
def test_a_checkpoint_is_checked_once_and_weights_of_modules_when_they_can_be_read(
    requested: Requested,
    lines: list[dict[str, Any]],
    progress: Progress,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    checked: str,
) -> None:
    seen: list[tuple[str, list[str], str]] = []

    def check(_: object, folder: Path, auxiliary: object) -> None:
        weights = sorted(str(file.relative_to(folder)) for file in folder.rglob("*model.*") if file.suffix != ".json")
        seen.append((folder.name, weights, str(lines[-1]["phase"])))

    monkeypatch.setattr(SentenceTransformerCheckpoint, "check", check)
    weights = {name: torch.from_numpy(array) for name, array in load_file(checkpoint / "model.safetensors").items()}
    (checkpoint / "pytorch_model.bin").unlink()
    torch.save(weights, checkpoint / path)
    if path == "pytorch_model.bin":
        (checkpoint / "model.safetensors").unlink()
    prepare(requested(str(checkpoint), allow_pickle=True), progress)
    if checked == "published":
        assert seen == [(checked, [], "download")]
    else:
        assert seen == [(checked, ["1_Pooling/model.safetensors", "model.safetensors"], "convert")]
