"""A repository on a hub, taken by hand: what a hub may answer to a listing and to a request for a file's size and hash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from encoder_plugins import errors
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources import huggingface
from encoder_plugins.prep.sources.huggingface import HubSource
from encoder_plugins.prep.sources.retry import RetryPolicy
from encoder_plugins.prep.tests.web_server import WebServer, running

COMMIT, OTHER, SHA256 = "1" * 40, "2" * 40, "a" * 64
CONFIG = {"rfilename": "config.json", "size": 2, "blobId": "b" * 40}
WEIGHTS = {"rfilename": "w", "size": 9, "blobId": "c" * 40, "lfs": {"sha256": SHA256, "size": 9, "pointerSize": 1}}
UNKNOWN = SourceFile(path="w", size=-1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    with running(tmp_path) as found:
        yield found


def source(server: WebServer, revision: str | None = COMMIT, repository: str = "a/b", **options: Any) -> HubSource:
    policy = RetryPolicy(attempts=1)
    return HubSource(repository, revision, **{"endpoint": server.address, "token": None, "policy": policy, **options})


def lists(server: WebServer, *siblings: dict[str, Any], sha: str | None = COMMIT) -> None:
    server.bodies["/api/models/a/b/"] = json.dumps({"id": "a/b", "sha": sha, "siblings": list(siblings)}).encode()


def quiet() -> Progress:
    return Progress(lambda _: None)


def test_files_are_listed_with_what_the_hub_knows_of_them(server: WebServer) -> None:
    lists(server, CONFIG, WEIGHTS, {"rfilename": "unknown"})
    found = source(server)
    assert found.listing(quiet()) == (
        SourceFile(path="config.json", size=2, git_sha1="b" * 40),
        SourceFile(path="w", size=9, sha256=SHA256),
        SourceFile(path="unknown", size=-1),
    )
    assert found.describe() == {"kind": "huggingFace", "repo": "a/b", "revision": COMMIT}


@pytest.mark.parametrize("revision", [None, "main", "v1", "1" * 39])
def test_a_branch_becomes_the_commit_that_it_names(server: WebServer, revision: str | None) -> None:
    lists(server, CONFIG, sha=OTHER)
    found = source(server, revision)
    assert found.revision == (revision or "main")
    found.listing(quiet())
    assert found.revision == OTHER
    assert server.requests[0][1] == f"/api/models/a/b/revision/{revision or 'main'}?blobs=true"


def test_another_commit_than_the_requested_one_is_refused(server: WebServer) -> None:
    lists(server, CONFIG, sha=OTHER)
    found = source(server)
    with pytest.raises(errors.ChecksumMismatch, match=f"lists {OTHER} instead of {COMMIT}"):
        found.listing(quiet())
    assert found.revision == COMMIT


def test_a_repository_without_files_or_commit_is_refused(server: WebServer) -> None:
    lists(server)
    with pytest.raises(errors.SourceFileNotFound, match="has no files"):
        source(server).listing(quiet())
    lists(server, CONFIG, sha=None)
    with pytest.raises(errors.SourceFileNotFound, match="has no files"):
        source(server).listing(quiet())


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"siblings": 3}', b'{"siblings": [{}]}'])
def test_an_answer_that_is_not_a_hubs_is_reported(server: WebServer, body: bytes) -> None:
    server.bodies["/api/models/a/b/"] = body
    with pytest.raises(errors.DownloadFailed, match=r"a/b@1+: 127\.0\.0\.1"):
        source(server).listing(quiet())


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (400, {}, errors.DownloadFailed),
        (401, {}, errors.AuthFailed),
        (403, {}, errors.AuthFailed),
        (404, {}, errors.RepositoryNotFound),
        (401, {"X-Error-Code": "RepoNotFound"}, errors.RepositoryNotFound),
        (404, {"X-Error-Code": "RevisionNotFound"}, errors.RevisionNotFound),
        (404, {"X-Error-Code": "EntryNotFound"}, errors.SourceFileNotFound),
        (429, {}, errors.RateLimited),
        (500, {}, errors.DownloadFailed),
        (418, {}, errors.DownloadFailed),
    ],
)
def test_a_status_is_a_reason(
    server: WebServer, status: int, headers: dict[str, str], error: type[errors.PrepareError]
) -> None:
    server.always = (status, {**headers, "X-Error-Message": "m" * 900})
    with pytest.raises(error, match=f"127.0.0.1 answered {status}: mmm") as caught:
        source(server).listing(quiet())
    assert type(caught.value) is error
    # it ends in a condition
    assert len(str(caught.value)) < 400


def test_a_name_that_is_none_and_a_hub_that_is_not_there_are_reported(server: WebServer) -> None:
    with pytest.raises(errors.RepositoryNotFound, match="no repository's name"):
        source(server, repository="a/b/c").listing(quiet())
    with pytest.raises(errors.DownloadFailed, match=r"127\.0\.0\.1: ConnectError") as caught:
        source(server, endpoint="http://user:secret@127.0.0.1:9").listing(quiet())
    assert "secret" not in str(caught.value)


def test_the_endpoint_is_the_one_given_or_that_of_the_environment(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists(server, CONFIG)
    monkeypatch.setenv("HF_ENDPOINT", f"{server.address}/")
    assert len(source(server, endpoint=None).listing(quiet())) == 1
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert len(source(server).listing(quiet())) == 1


@pytest.mark.parametrize(
    ("tag", "sha256", "git_sha1"),
    [(SHA256, SHA256, None), ("b" * 40, None, "b" * 40), ("b" * 39, None, None), ("A" * 64, None, None)],
)
def test_a_size_or_a_hash_that_is_not_known_is_requested(
    server: WebServer, tag: str, sha256: str | None, git_sha1: str | None
) -> None:
    headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"', "X-Linked-Size": "9"}
    server.statuses[f"/a/b/resolve/{COMMIT}/w"] = (200, headers)
    expected = SourceFile(path="w", size=9, sha256=sha256, git_sha1=git_sha1)
    assert source(server).completed(UNKNOWN, quiet()) == expected
    sized = SourceFile(path="w", size=9)
    assert source(server).completed(sized, quiet()) == expected
    server.requests.clear()
    for known in (SourceFile(path="w", size=0, sha256=SHA256), SourceFile(path="w", size=0, git_sha1="b" * 40)):
        assert source(server).completed(known, quiet()) is known
    assert server.requests == []


@pytest.mark.parametrize(("token", "header"), [(None, None), ("", None), ("t", "Bearer t")])
def test_a_token_is_sent_if_there_is_one(
    server: WebServer, tmp_path: Path, token: str | None, header: str | None
) -> None:
    lists(server, CONFIG)
    server.bodies["/a/b/resolve/"] = b"{}"
    found = source(server, token=token)
    found.listing(quiet())
    found.fetch(SourceFile(path="config.json", size=2), tmp_path / "partial", quiet())
    assert server.authorizations == [header, header]


def test_a_refusal_without_words_has_none(server: WebServer) -> None:
    server.always = (404, {})
    with pytest.raises(errors.RepositoryNotFound, match=r"127\.0\.0\.1 answered 404$"):
        source(server).listing(quiet())


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, errors.DownloadFailed),
        (404, {}, errors.DownloadFailed),
        (429, {}, errors.RateLimited),
        (500, {}, errors.DownloadFailed),
    ],
)
def test_the_storage_behind_a_hub_knows_nothing_of_repositories(
    server: WebServer, tmp_path: Path, status: int, headers: dict[str, str], error: type[errors.PrepareError]
) -> None:
    place = f"http://localhost:{server.server_port}/storage/w"
    server.statuses = {f"/a/b/resolve/{COMMIT}/w": (302, {"Location": place}), "/storage/w": (status, headers)}
    with pytest.raises(error, match=f"w: localhost answered {status}$") as caught:
        source(server).fetch(WHOLE, tmp_path / "partial", quiet())
    assert type(caught.value) is error


WHOLE = SourceFile(path="w", size=9)


@pytest.mark.parametrize("knows_ranges", [True, False])
@pytest.mark.parametrize("there", [b"", b"012"])
def test_a_file_is_continued_where_the_hub_knows_ranges_and_else_taken_whole(
    server: WebServer, tmp_path: Path, knows_ranges: bool, there: bytes
) -> None:
    path = f"/a/b/resolve/{COMMIT}/w"
    if knows_ranges:
        (file := server.root / path.lstrip("/")).parent.mkdir(parents=True)
        file.write_bytes(b"012345678")
    else:
        server.bodies[path] = b"012345678"
    (partial := tmp_path / "partial").write_bytes(there)
    source(server).fetch(WHOLE, partial, quiet())
    assert partial.read_bytes() == b"012345678"
    assert server.requests == [("GET", path, "bytes=3-" if there else "")]


@pytest.mark.parametrize(("stall", "connect", "read"), [(600.0, 30.0, 300.0), (20.0, 10.0, 10.0)])
def test_a_hub_has_half_of_the_stall_to_answer_and_at_most_30_seconds_to_connect(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stall: float, connect: float, read: float
) -> None:
    given: list[Any] = []

    def stream(*_: object, timeout: Any, **__: object) -> Any:
        given.append(timeout)
        raise httpx.ConnectError("nobody is there")

    monkeypatch.setattr(huggingface, "get_session", lambda: SimpleNamespace(stream=stream))
    found = source(server, policy=RetryPolicy(attempts=1, stall_seconds=stall))
    with pytest.raises(errors.DownloadFailed, match="ConnectError: nobody is there"):
        found.fetch(WHOLE, tmp_path / "partial", quiet())
    assert [(each.connect, each.read) for each in given] == [(connect, read)]


def test_a_size_that_nobody_knows_stays_the_one_that_was_listed(server: WebServer) -> None:
    headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{SHA256}"', "Transfer-Encoding": "chunked"}
    server.statuses[f"/a/b/resolve/{COMMIT}/w"] = (200, headers)
    for size in (9, -1):
        found = source(server).completed(SourceFile(path="w", size=size), quiet())
        assert found == SourceFile(path="w", size=size, sha256=SHA256)


def test_an_address_that_is_none_and_a_client_that_is_offline_are_reported(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.DownloadFailed, match="w: host: InvalidURL"):
        source(server, endpoint="http://host:port").fetch(WHOLE, tmp_path / "partial", quiet())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(errors.DownloadFailed, match="HF_HUB_OFFLINE is set"):
        source(server).listing(quiet())
    assert server.requests == []
