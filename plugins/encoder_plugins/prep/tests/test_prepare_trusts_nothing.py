"""What a source or an earlier attempt may have put in the way of a prep: each guard is called, not only there."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_plugins import catalog, errors
from encoder_plugins.artifact import manifest
from encoder_plugins.artifact.cases import fingerprint
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.artifact.staging import Staging, discard
from encoder_plugins.models.sentence_transformer.checkpoint import SentenceTransformerCheckpoint
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Auxiliary, Request
from encoder_plugins.prep.sources.local import FolderSource

Requested = Callable[..., Request]


@pytest.fixture
def further(tmp_path: Path) -> Path:
    """An auxiliary repository."""
    folder = tmp_path / "further"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


def test_what_an_earlier_attempt_left_is_compared_or_removed(requested: Requested, progress: Progress) -> None:
    request = requested()
    sound = prepare(request, progress)
    size = (request.output / "model" / "config.json").stat().st_size
    discard(request.output)
    staging = Staging.beside(request.output)
    left = {
        # of the right length, so that only its hash differs
        staging.published / "config.json": bytes(size),
        staging.published / "1_Pooling" / "added.json": b"{}",
        staging.artifact / "model" / "added.json": b"{}",
        staging.unpickled / "model.safetensors": b"",
    }
    for path, content in left.items():
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert prepare(request, progress) == sound
    manifest.verify(request.output, sound.digest)


def test_a_copy_that_no_hash_identifies_is_taken_anew(
    requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FolderSource.listing

    def listing(source: FolderSource, progress: Progress) -> tuple[SourceFile, ...]:
        # as an object store does
        return tuple(replace(file, sha256=None, tag="1") for file in honest(source, progress))

    monkeypatch.setattr(FolderSource, "listing", listing)
    request = requested(str(checkpoint))
    left = Staging.beside(request.output).published / "vocab.txt"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes((checkpoint / "vocab.txt").stat().st_size))
    prepare(request, progress)
    assert (request.output / "model" / "vocab.txt").read_bytes() == (checkpoint / "vocab.txt").read_bytes()


@pytest.mark.parametrize("where", ["checkpoint", "further"])
def test_a_source_that_lists_a_path_outside_is_refused(
    requested: Requested,
    progress: Progress,
    checkpoint: Path,
    further: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    lying = {"checkpoint": checkpoint, "further": further}[where].resolve()
    honest = FolderSource.listing

    def listing(source: FolderSource, progress: Progress) -> tuple[SourceFile, ...]:
        files = honest(source, progress)
        outside = SourceFile(path="../../outside.json", size=2)
        return (*files, outside) if source.path(files[0]).is_relative_to(lying) else files

    monkeypatch.setattr(FolderSource, "listing", listing)
    request = requested(str(checkpoint), auxiliary=(Auxiliary(str(further)),))
    with pytest.raises(errors.Unsupported, match="not a plain relative path"):
        prepare(request, progress)
    assert not (request.output.parent / ".staging").exists()


@pytest.mark.parametrize(
    "config", [{"auto_map": {"AutoModel": "a.B"}}, {"encoder": {"auto_map": {"AutoModel": "a.B"}}}]
)
def test_code_of_an_auxiliary_repository_is_refused(
    requested: Requested,
    progress: Progress,
    checkpoint: Path,
    further: Path,
    recorder: list[Path],
    config: dict[str, object],
) -> None:
    (further / "config.json").write_text(json.dumps(config))
    request = requested(str(checkpoint), auxiliary=(Auxiliary(str(further)),))
    # what an earlier attempt left is taken anew
    left = Staging.beside(request.output).auxiliary / "0" / "config.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    with pytest.raises(errors.RemoteCodeRefused, match="auto_map"):
        prepare(request, progress)
    assert recorder == []


def test_an_artifact_records_what_a_user_chose_and_is_found_by_it(
    requested: Requested,
    progress: Progress,
    checkpoint: Path,
    further: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as if the format had a use for them
    monkeypatch.setattr(SentenceTransformerCheckpoint, "check", lambda *_: None)
    monkeypatch.setattr(SentenceTransformerCheckpoint, "configured", lambda self, _: self, raising=False)
    chosen: dict[str, Any] = {"inputs": [{"text": "a"}], "parameters": {"words": "few"}}
    request = requested(str(checkpoint), auxiliary=(Auxiliary(str(further)),), **chosen)
    # of an earlier attempt, when the repository had other files
    left = Staging.beside(request.output).auxiliary / "0" / "added.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")

    def record(*_: object, **__: object) -> Recording:
        changed = {"config.json": {"words": "many"}}
        outputs = {"one": {"vector": np.zeros(1, np.float32)}}
        return Recording(cases=[{"id": "one"}], outputs=outputs, about={}, changed=changed)

    prepared = prepare(request, progress, record)
    source = manifest.read(request.output).source
    (auxiliary,) = source["auxiliary"]
    assert (auxiliary["kind"], auxiliary["files"]) == ("pvc", manifest.tree_digest(further))
    assert source["inputs"] == fingerprint(request.inputs)
    assert source["parameters"] == {"words": "few"}
    assert source["changed"] == {"config.json": {"words": "many"}}
    lines: list[dict[str, Any]] = []
    assert prepare(request, Progress(lines.append)) == prepared
    assert lines == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plugin", catalog.get("deberta_gliner")),
        ("revision", "0" * 40),
        ("auxiliary", (Auxiliary("a/b", "1" * 40),)),
        ("inputs", [{"text": "a"}]),
        ("trust_remote_code", True),
        ("output", Path("other")),
    ],
)
def test_an_artifact_of_another_request_is_not_taken_for_this_one(
    requested: Requested, progress: Progress, name: str, value: Any
) -> None:
    request = requested()
    prepare(request, progress)
    changed = replace(request, **{name: value})
    if isinstance(value, Path):
        changed = replace(request, output=request.output.rename(request.output.with_name(value.name)))
    differing = {"output": "key"}.get(name, name)
    with pytest.raises(errors.Unsupported, match=rf"holds another artifact \({differing}: .*\): choose another output"):
        prepare(changed, progress)


def test_a_script_beside_the_weights_does_not_reach_the_library(
    requested: Requested, progress: Progress, checkpoint: Path
) -> None:
    (checkpoint / "train.py").write_text("raise SystemExit")
    request = requested(str(checkpoint))
    prepare(request, progress)
    assert [entry.path for entry in manifest.read(request.output).files if entry.path.endswith(".py")] == []


def test_a_file_that_changes_after_it_was_listed_is_refused(
    requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FolderSource.listing

    def listing(source: FolderSource, progress: Progress) -> tuple[SourceFile, ...]:
        files = honest(source, progress)
        (checkpoint / "vocab.txt").write_bytes(bytes((checkpoint / "vocab.txt").stat().st_size))
        return files

    monkeypatch.setattr(FolderSource, "listing", listing)
    request = requested(str(checkpoint))
    with pytest.raises(errors.ChecksumMismatch, match=r"vocab\.txt"):
        prepare(request, progress)
    assert not request.output.exists()
    assert list(Staging.beside(request.output).partial.iterdir()) == []


@pytest.mark.parametrize(
    ("auxiliary", "says"),
    [
        (Auxiliary("a/b"), "write a/b@<commit>"),
        (Auxiliary("a/b", "main"), "'main' is not a commit"),
        (Auxiliary("a/b", "1" * 39), "is not a commit"),
        (Auxiliary("s3://bucket/b", "1" * 40), "must be on a hub, or a folder"),
        (Auxiliary("https://host/b", "1" * 40), "must be on a hub, or a folder"),
    ],
)
def test_an_auxiliary_repository_is_pinned_even_where_the_checkpoint_is_not(
    requested: Requested, progress: Progress, auxiliary: Auxiliary, says: str
) -> None:
    with pytest.raises(errors.Unsupported, match=says):
        prepare(requested(revision="main", allow_mutable_revision=True, auxiliary=(auxiliary,)), progress)


class Mirror(BaseHTTPRequestHandler):
    """A mirror of a hub that answers every request with its newest commit."""

    def do_GET(self) -> None:
        files = [{"rfilename": "modules.json", "size": 2, "blobId": "0" * 40}]
        listing = json.dumps({"id": "a/b", "sha": "2" * 40, "siblings": files}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(listing)))
        self.end_headers()
        self.wfile.write(listing)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.mark.parametrize("where", ["checkpoint", "auxiliary"])
def test_a_mirror_that_answers_another_commit_is_refused(
    requested: Requested, progress: Progress, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, 0.01)
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            if where == "checkpoint":
                request = requested("a/b", revision="1" * 40, endpoint=address)
            else:
                monkeypatch.setenv("HF_ENDPOINT", address)
                request = requested(str(checkpoint), endpoint=None, auxiliary=(Auxiliary("a/b", "1" * 40),))
            with pytest.raises(errors.ChecksumMismatch, match=f"lists {'2' * 40} instead of {'1' * 40}"):
                prepare(request, progress)
        finally:
            server.shutdown()
