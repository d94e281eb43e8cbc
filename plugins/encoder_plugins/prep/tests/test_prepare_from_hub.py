"""prep against the real hub server, over the real client, with every fault that the server has."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from encoder_plugins import errors
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.tests import tiny_checkpoint

Requested = Callable[..., Request]
TAKEN = {
    "1_Pooling/config.json", "config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json",
    "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
}  # fmt: skip


def staged(request: Request) -> list[str]:
    """What is left in the staging folder."""
    folder = request.output.parent / ".staging"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_an_artifact_holds_what_is_loaded_and_nothing_else(
    requested: Requested, progress: Progress, hub: Any, tmp_path: Path
) -> None:
    request = requested()
    prepared = prepare(request, progress)
    manifest = artifact.verify(request.output, prepared.digest)
    paths = {entry.path for entry in manifest.files}
    assert {path.removeprefix("model/") for path in paths if path.startswith("model/")} == TAKEN
    assert paths - {f"model/{path}" for path in TAKEN} == {artifact.CASES, artifact.EXPECTED, artifact.ABOUT}
    published = artifact.tree_digest(tiny_checkpoint.as_published(request.output / "model", tmp_path / "published"))
    assert manifest.source == {
        "kind": "huggingFace",
        "repo": "demo/tiny",
        "revision": hub.revision,
        "published": published,
    }
    assert (prepared.revision, prepared.cases, prepared.files) == (hub.revision, 2, len(TAKEN) + 3)
    assert manifest.reference_digest == prepared.reference
    assert not (request.output.parent / ".staging").exists()


def test_a_complete_artifact_is_found_without_network(
    requested: Requested, progress: Progress, recorder: list[Path]
) -> None:
    first = prepare(requested(), progress)
    assert prepare(requested(endpoint="http://127.0.0.1:9"), progress) == first
    assert len(recorder) == 1


@pytest.mark.complaint(4)
def test_two_revisions_of_a_repository_live_side_by_side(requested: Requested, progress: Progress, hub: Any) -> None:
    first = prepare(requested(), progress)
    second = requested(revision=hub.second_revision)
    second = Request(
        **{name: getattr(second, name) for name in second.__slots__} | {"output": second.output.with_name("other")}
    )
    assert prepare(second, progress).digest != first.digest
    assert json.loads((second.output / "model/config_sentence_transformers.json").read_bytes())["prompts"]["second"]


def test_a_branch_is_pinned_to_the_commit_it_names(requested: Requested, progress: Progress, hub: Any) -> None:
    assert prepare(requested(revision=None), progress).revision == hub.revision


def test_a_cut_connection_goes_on_where_it_broke(
    requested: Requested, progress: Progress, naps: list[float], hub: Any
) -> None:
    prepare(requested("cut/tiny"), progress)
    assert hub.requests("cut/tiny")["GET cdn cut/tiny"] == 3
    # each of the two cuts came after new bytes, so the retry policy starts again
    assert naps == [1.0, 1.0]


def test_a_request_to_a_failing_hub_is_repeated(requested: Requested, progress: Progress, naps: list[float]) -> None:
    prepare(requested("error/tiny"), progress)
    assert naps == [1.0, 2.0]


@pytest.mark.complaint(7)
def test_retry_after_is_obeyed(requested: Requested, progress: Progress, naps: list[float]) -> None:
    prepare(requested("busy/tiny"), progress)
    assert naps == [1.0, 1.0]


def test_a_retry_after_of_an_hour_ends_the_attempt(requested: Requested, progress: Progress, naps: list[float]) -> None:
    with pytest.raises(errors.RateLimited):
        prepare(requested("limited/tiny"), progress)
    assert naps == []


def test_a_hub_that_stays_down_ends_the_attempt(requested: Requested, progress: Progress, naps: list[float]) -> None:
    with pytest.raises(errors.DownloadFailed, match="500"):
        prepare(requested("down/tiny"), progress)
    assert naps == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.complaint(1)
def test_a_stall_ends_the_attempt_and_keeps_the_bytes(
    requested: Requested, progress: Progress, naps: list[float]
) -> None:
    request = requested("stall/tiny", stall_seconds=1.5)
    with pytest.raises(errors.Stalled, match=r"no byte .* for 1\.5 s"):
        prepare(request, progress)
    assert not request.output.exists()
    partial = [path for path in staged(request) if "/partial/" in path]
    assert len(partial) == 1
    assert (request.output.parent / ".staging" / partial[0]).stat().st_size > 0


def test_an_attempt_resumes_what_the_last_one_downloaded(
    requested: Requested, progress: Progress, naps: list[float], hub: Any
) -> None:
    with pytest.raises(errors.Stalled):
        prepare(requested("stall-resume/tiny", stall_seconds=1.5), progress)
    before = hub.requests("demo/tiny").get("GET resolve demo/tiny", 0)
    prepare(requested(), progress)
    # the small files were there already: one request fetched the rest of the large one
    assert hub.requests("demo/tiny")["GET resolve demo/tiny"] == before + 1
    artifact.verify(requested().output)


def test_wrong_bytes_are_never_served_and_never_kept(requested: Requested, progress: Progress) -> None:
    request = requested("corrupt/tiny")
    with pytest.raises(errors.ChecksumMismatch, match=r"model\.safetensors"):
        prepare(request, progress)
    assert not request.output.exists()
    assert not any("/partial/" in path or "safetensors" in path for path in staged(request))
    assert prepare(requested(), progress).files == len(TAKEN) + 3


@pytest.mark.parametrize(
    ("source", "changes", "error"),
    [
        ("demo/nothing", {}, errors.RepositoryNotFound),
        ("demo/tiny", {"revision": "0" * 40}, errors.RevisionNotFound),
        ("gated/tiny", {}, errors.AuthFailed),
        ("gated/tiny", {"token": "hf_wrong"}, errors.AuthFailed),
        ("huge/tiny", {}, errors.InsufficientSpace),
        ("a/b/c", {}, errors.Unsupported),
        ("../tiny", {}, errors.RepositoryNotFound),
    ],
)
def test_a_refusal_has_its_reason_and_leaves_nothing(
    requested: Requested, progress: Progress, source: str, changes: dict[str, Any], error: type[errors.PrepareError]
) -> None:
    request = requested(source, **changes)
    with pytest.raises(error) as caught:
        prepare(request, progress)
    assert type(caught.value) is error
    assert "hf_wrong" not in str(caught.value)
    assert not request.output.exists()
    assert staged(request) == []


def test_a_gated_repository_opens_with_its_token(requested: Requested, progress: Progress) -> None:
    request = requested("gated/tiny", token="hf_test_token")
    prepare(request, progress)
    assert "hf_test_token" not in repr(request)
    assert not any(b"hf_test_token" in path.read_bytes() for path in request.output.rglob("*") if path.is_file())


def test_an_unreachable_hub_is_worth_another_try(requested: Requested, progress: Progress, naps: list[float]) -> None:
    with pytest.raises(errors.DownloadFailed, match=r"127\.0\.0\.1"):
        prepare(requested(endpoint="http://user:secret@127.0.0.1:9"), progress)
    assert len(naps) == 4


def test_an_address_that_is_not_a_hub_is_refused(
    requested: Requested, progress: Progress, naps: list[float], hub: Any
) -> None:
    with pytest.raises(errors.RepositoryNotFound):
        prepare(requested(endpoint=f"{hub.address}/elsewhere"), progress)


def test_progress_counts_every_byte(
    requested: Requested, progress: Progress, lines: list[dict[str, Any]], tmp_path: Path
) -> None:
    request = requested()
    prepare(request, progress)
    last = [line for line in lines if line["phase"] == "download"][-1]
    published = tiny_checkpoint.as_published(request.output / "model", tmp_path / "published")
    size = sum(path.stat().st_size for path in published.rglob("*") if path.is_file())
    assert last["bytes"] == last["total"] == size
    phases = list(dict.fromkeys(line["phase"] for line in lines))
    assert phases == ["listing", "download", "convert", "reference", "seal", "publish", "clean"]


class Storage(BaseHTTPRequestHandler):
    """A storage server that refuses everybody and remembers who sent a token."""

    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


class RedirectingHub(Storage):
    """A hub that lists one file and sends its clients elsewhere for it."""

    storage: ClassVar[str]

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        files = [{"rfilename": name, "size": 9, "blobId": "0" * 40} for name in ("modules.json",)]
        listing = json.dumps({"id": "a/b", "sha": "1" * 40, "siblings": files})
        if self.path.startswith("/api/"):
            self.send_response(200)
            self.send_header("Content-Length", str(len(listing)))
            self.end_headers()
            self.wfile.write(listing.encode())
        else:
            self.send_response(302)
            self.send_header("Location", f"{self.storage}/file?signature=secret-signature")
            self.send_header("Content-Length", "0")
            self.end_headers()


def test_a_token_goes_to_the_hub_and_nowhere_else(requested: Requested, progress: Progress, naps: list[float]) -> None:
    seen: list[list[str | None]] = [[], []]
    storage = type("ItsStorage", (Storage,), {"tokens": seen[1]})
    with ThreadingHTTPServer(("127.0.0.1", 0), storage) as there:
        address = {"tokens": seen[0], "storage": f"http://localhost:{there.server_port}"}
        with (
            ThreadingHTTPServer(("127.0.0.1", 0), type("ItsHub", (RedirectingHub,), address)) as here,
            ThreadPoolExecutor(2) as pool,
        ):
            pool.submit(here.serve_forever, 0.01)
            pool.submit(there.serve_forever, 0.01)
            try:
                request = requested(
                    "a/b", endpoint=f"http://127.0.0.1:{here.server_port}", token="hf_private", revision="1" * 40
                )
                with pytest.raises(errors.DownloadFailed, match="localhost answered 403") as caught:
                    prepare(request, progress)
            finally:
                here.shutdown()
                there.shutdown()
    assert set(seen[0]) == {"Bearer hf_private"}
    assert set(seen[1]) == {None}
    assert "secret-signature" not in str(caught.value)
