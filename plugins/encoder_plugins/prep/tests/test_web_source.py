"""A tar or a list on a web server, taken by hand: what is requested, what is left over, and what a server may answer."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from encoder_plugins import errors
from encoder_plugins.artifact.staging import Staging
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources import http
from encoder_plugins.prep.sources.http import WebSource
from encoder_plugins.prep.sources.retry import RetryPolicy
from encoder_plugins.prep.tests.web_server import WebServer, running

Source = Callable[[str, bytes], WebSource]
CONFIG = b'{"a": 1}'
CONFIG_SHA256 = hashlib.sha256(CONFIG).hexdigest()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    root = tmp_path / "root"
    root.mkdir()
    (root / "config.json").write_bytes(CONFIG)
    with running(root) as found:
        yield found


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    found = Staging.beside(tmp_path / "volume" / "key")
    found.root.mkdir(parents=True)
    return found


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def source(server: WebServer, staging: Staging) -> Iterator[Callable[[str, bytes], WebSource]]:
    """Return a function that publishes a document and returns its source."""
    with ExitStack() as opened:

        def publish(name: str, content: bytes) -> WebSource:
            (server.root / name).write_bytes(content)
            policy = RetryPolicy(attempts=1)
            found = WebSource(f"{server.address}/{name}", sha256(content), staging=staging, policy=policy)
            opened.callback(found.close)
            return found

        yield publish


def tar(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as found:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            found.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def collected() -> tuple[Progress, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    return Progress(lines.append), lines


def test_a_list_is_read_as_sha256sum_prints_it(server: WebServer, staging: Staging, source: Source) -> None:
    text = f"{CONFIG_SHA256}  ./config.json\n{CONFIG_SHA256.upper()} *b/c d.bin\n"
    found = source("SHA256SUMS", text.encode())
    assert found.listing(collected()[0]) == (
        SourceFile(path="config.json", size=-1, sha256=CONFIG_SHA256),
        SourceFile(path="b/c d.bin", size=-1, sha256=CONFIG_SHA256),
    )
    assert found.describe() == {"kind": "http", "revision": sha256(text.encode())}


def test_a_line_that_is_none_of_a_list_is_named_by_its_number(source: Source) -> None:
    good = f"{CONFIG_SHA256}  config.json\n"
    with pytest.raises(errors.Unsupported, match="line 2 is not <sha256>  <relative path>"):
        source("list", f"{good}{good}".encode()).listing(collected()[0])


def test_a_list_may_have_as_many_bytes_as_the_limit(
    server: WebServer, staging: Staging, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"{CONFIG_SHA256}  config.json\n".encode()
    monkeypatch.setattr(http, "_LARGEST_INDEX", len(line))
    assert len(source("one", line).listing(collected()[0])) == 1
    with pytest.raises(errors.Unsupported, match=f"at most {len(line)} bytes"):
        source("two", line + b"\n").listing(collected()[0])


def test_a_document_that_is_larger_than_any_list_is_refused(source: Source) -> None:
    with pytest.raises(errors.Unsupported, match="a checksum list, which has at most 4194304 bytes"):
        source("large", b"x" * (4 << 20) + b"x").listing(collected()[0])


def test_a_document_without_a_name_is_named_index(server: WebServer, staging: Staging) -> None:
    found = WebSource(f"{server.address}/", "0" * 64, staging=staging, policy=RetryPolicy(attempts=1))
    with pytest.raises(errors.SourceFileNotFound, match=r"^index: 127\.0\.0\.1 answered 404"):
        found.listing(collected()[0])
    found.close()


def test_a_document_that_is_there_is_not_requested_again_unless_it_is_another(
    server: WebServer, staging: Staging, source: Source
) -> None:
    line = f"{CONFIG_SHA256}  config.json\n".encode()
    found = source("list", line)
    staging.document.write_bytes(line)
    assert len(found.listing(collected()[0])) == 1
    assert server.requests == []
    # of an earlier attempt with another sha256, and longer
    staging.document.write_bytes(b"x" * 500)
    progress, lines = collected()
    assert len(found.listing(progress)) == 1
    assert [method for method, _, _ in server.requests] == ["HEAD", "GET"]
    assert (lines[0]["phase"], lines[0]["total"]) == ("download", len(line))


def test_a_document_that_the_volume_has_no_room_for_is_not_requested(
    server: WebServer, staging: Staging, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source("list", f"{CONFIG_SHA256}  config.json\n".encode())
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=1))
    with pytest.raises(errors.InsufficientSpace):
        found.listing(collected()[0])
    assert [method for method, _, _ in server.requests] == ["HEAD"]


def test_a_tar_is_unpacked_once_and_what_an_attempt_left_of_it_is_not_taken(
    server: WebServer, staging: Staging, source: Source
) -> None:
    content = tar(**{"top/config.json": CONFIG, "top/b/c": b"2"})
    unfinished = staging.unpacked.with_name(f"{staging.unpacked.name}.unfinished")
    (unfinished / "top").mkdir(parents=True)
    (unfinished / "top" / "left-over").touch()
    progress, lines = collected()
    found = source("a.tar", content)
    listed = found.listing(progress)
    assert [file.path for file in listed] == ["b/c", "config.json"]
    assert {"phase": "unpack", "total": len(content)}.items() <= next(
        line for line in lines if line["phase"] == "unpack"
    ).items()
    assert not unfinished.exists()
    # the volume need not hold the tar beside what came out of it
    assert not staging.document.exists()
    # the next attempt requests nothing
    server.requests.clear()
    assert source("a.tar", content).listing(collected()[0]) == listed
    assert server.requests == []


@pytest.mark.parametrize("links", [True, False])
def test_a_file_of_a_tar_becomes_a_partial_file_and_is_checked(
    server: WebServer, staging: Staging, source: Source, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    found = source("a.tar", tar(**{"config.json": CONFIG}))
    (listed,) = found.listing(collected()[0])
    partial = staging.root / "partial"
    partial.write_bytes(b"left over, and longer than the file")
    progress, lines = collected()
    progress.start("download", len(CONFIG))
    found.fetch(listed, partial, progress)
    assert partial.read_bytes() == CONFIG
    assert partial.samefile(staging.unpacked / "config.json") is links
    assert lines[-1]["bytes"] == len(CONFIG)
    (staging.unpacked / "config.json").write_bytes(b'{"a": 2}')
    with pytest.raises(errors.ChecksumMismatch):
        found.fetch(listed, partial, progress)


@pytest.mark.parametrize(
    ("status", "headers", "size"),
    [
        (200, {"Content-Length": "8"}, 8),
        (200, {"Content-Length": "0"}, -1),
        (200, {"Transfer-Encoding": "chunked"}, -1),
        (403, {}, -1),
        (405, {}, -1),
        (501, {}, -1),
    ],
)
def test_a_size_that_is_not_known_is_requested(
    server: WebServer, staging: Staging, source: Source, status: int, headers: dict[str, str], size: int
) -> None:
    found = source("list", b"")
    file = SourceFile(path="config.json", size=-1, sha256=CONFIG_SHA256)
    server.statuses["/config.json"] = (status, headers)
    assert found.completed(file, collected()[0]).size == size
    known = SourceFile(path="config.json", size=0, sha256=CONFIG_SHA256)
    server.requests.clear()
    assert found.completed(known, collected()[0]) == known
    assert server.requests == []


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, errors.Unsupported),
        (401, errors.AuthFailed),
        (403, errors.AuthFailed),
        (407, errors.AuthFailed),
        (404, errors.SourceFileNotFound),
        (410, errors.SourceFileNotFound),
        (408, errors.DownloadFailed),
        (500, errors.DownloadFailed),
        (599, errors.DownloadFailed),
        (429, errors.RateLimited),
        (503, errors.RateLimited),
    ],
)
def test_a_status_is_a_reason_for_sizes_and_files(
    server: WebServer, staging: Staging, source: Source, status: int, error: type[errors.PrepareError]
) -> None:
    found = source("list", b"")
    file = SourceFile(path="a b", size=-1, sha256=CONFIG_SHA256)
    server.statuses["/a b"] = (status, {})
    requests: list[Callable[[], object]] = [lambda: found.fetch(file, staging.root / "partial", collected()[0])]
    # an address may be signed for the download alone
    requests += [lambda: found.completed(file, collected()[0])] if status != 403 else []
    for request in requests:
        with pytest.raises(error, match=f"127.0.0.1 answered {status}") as caught:
            request()
        assert type(caught.value) is error


@pytest.mark.parametrize(("port", "error"), [("9", "ConnectError"), ("none", "InvalidURL")])
def test_a_server_that_is_not_there_is_reported_by_its_host(staging: Staging, port: str, error: str) -> None:
    policy = RetryPolicy(attempts=1)
    gone = WebSource(f"http://127.0.0.1:{port}/list?signature=secret", "0" * 64, staging=staging, policy=policy)
    with pytest.raises(errors.DownloadFailed, match=rf"list: 127\.0\.0\.1: {error}") as caught:
        gone.listing(collected()[0])
    gone.close()
    assert "secret" not in str(caught.value)


def test_what_is_missing_of_a_file_is_requested(server: WebServer, staging: Staging, source: Source) -> None:
    found = source("list", b"")
    file, partial = SourceFile(path="config.json", size=-1, sha256=CONFIG_SHA256), staging.root / "partial"
    for there, ranges in ((b"", ""), (CONFIG[:3], "bytes=3-"), (CONFIG, f"bytes={len(CONFIG)}-")):
        server.requests.clear()
        partial.write_bytes(there)
        found.fetch(file, partial, collected()[0])
        assert partial.read_bytes() == CONFIG
        assert server.requests == [("GET", "/config.json", ranges)]
    found.close()
    with pytest.raises(RuntimeError, match="closed"):
        found.fetch(file, staging.root / "other", collected()[0])


def test_a_server_that_knows_no_ranges_sends_the_whole_file_again(
    server: WebServer, staging: Staging, source: Source
) -> None:
    found = source("list", b"")
    server.bodies["/config.json"] = CONFIG
    file, partial = SourceFile(path="config.json", size=len(CONFIG), sha256=CONFIG_SHA256), staging.root / "partial"
    partial.write_bytes(CONFIG[:3])
    found.fetch(file, partial, collected()[0])
    assert partial.read_bytes() == CONFIG
    assert server.requests == [("GET", "/config.json", "bytes=3-")]


def test_what_is_stored_compressed_is_taken_as_it_is_stored(
    server: WebServer, staging: Staging, source: Source
) -> None:
    packed = gzip.compress(tar(**{"config.json": CONFIG}))
    found, server.extra = source("m.tgz", packed), {"Content-Encoding": "gzip"}
    assert [file.path for file in found.listing(collected()[0])] == ["config.json"]


@pytest.mark.parametrize(
    ("address", "digest"),
    [
        ("http://user@host/a", "0" * 64),
        ("http://:password@host/a", "0" * 64),
        ("http:///a", "0" * 64),
        ("http://host/a", None),
        ("http://host/a", ""),
        ("http://host/a", "0" * 63),
        ("http://host/a", "A" * 64),
    ],
)
def test_an_address_is_pinned_and_holds_no_password(staging: Staging, address: str, digest: str | None) -> None:
    with pytest.raises(errors.Unsupported) as caught:
        WebSource(address, digest, staging=staging, policy=RetryPolicy())
    assert "password@" not in str(caught.value)
