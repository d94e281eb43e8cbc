"""prep from a web server: a tar, or a folder that a list of sha256 sums names."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins import errors
from encoder_plugins.artifact import manifest
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request
from encoder_plugins.prep.tests import faulty_proxy, web_server
from encoder_plugins.prep.tests.web_server import WebServer

Requested = Callable[..., Request]
LARGE = "model.safetensors"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "www"
    folder.mkdir()
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[WebServer]:
    with web_server.running(root) as running:
        yield running


@pytest.fixture
def web(server: WebServer, root: Path, requested: Requested) -> Requested:
    """A request for a path of the server, pinned to what is there."""

    def request(path: str, **changes: Any) -> Request:
        given = {"revision": sha256((root / path).read_bytes()), "endpoint": None}
        return requested(f"{server.address}/{path}", **given | changes)

    return request


def pack(folder: Path, target: Path, *, top: str = "", mode: Any = "w:gz") -> Path:
    with tarfile.open(target, mode) as tar:
        tar.add(folder, arcname=top or ".")
    return target


def listed(folder: Path) -> str:
    """What `find -type f | sort | xargs sha256sum` prints."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "".join(f"{sha256(path.read_bytes())}  ./{path.relative_to(folder).as_posix()}\n" for path in files)


@pytest.fixture
def published(root: Path, checkpoint: Path) -> Path:
    """The checkpoint as a folder with its list."""
    folder = checkpoint.rename(root / "tiny")
    (folder / "a b#c.txt").write_text("a name that an address has to quote")
    (folder / "SHA256SUMS").write_text(listed(folder))
    return folder


def model_files(output: Path) -> list[manifest.FileEntry]:
    return [entry for entry in manifest.verify(output).files if entry.path.startswith("model/")]


@pytest.mark.parametrize(
    ("name", "mode", "top"),
    [("tiny.tar", "w", ""), ("tiny.tar.gz", "w:gz", "tiny-1.0"), ("tiny.txz", "w:xz", "a"), ("download", "w:bz2", "")],
)
def test_a_tar_becomes_the_same_model_as_its_folder(
    web: Requested,
    requested: Requested,
    progress: Progress,
    root: Path,
    checkpoint: Path,
    name: str,
    mode: str,
    top: str,
) -> None:
    pack(checkpoint, root / name, top=top, mode=mode)
    prepared = prepare(web(name), progress)
    assert manifest.verify(web(name).output).source.items() >= {"kind": "http", "revision": prepared.revision}.items()
    assert prepared.revision == sha256((root / name).read_bytes())
    fields = {field: getattr(requested(str(checkpoint)), field) for field in Request.__slots__}
    folder = Request(**fields | {"output": web(name).output.with_name("other")})
    prepare(folder, progress)
    assert model_files(web(name).output) == model_files(folder.output)
    assert not (folder.output.parent / ".staging").exists()


def test_a_list_names_the_files_beside_it(web: Requested, progress: Progress, published: Path) -> None:
    prepare(web("tiny/SHA256SUMS"), progress)
    output = web("tiny/SHA256SUMS").output
    assert (output / "model" / LARGE).read_bytes() == (published / LARGE).read_bytes()
    assert (output / "model" / "a b#c.txt").is_file()
    assert not (output / "model" / "pytorch_model.bin").exists()


def test_a_complete_artifact_is_found_without_the_server(web: Requested, progress: Progress, published: Path) -> None:
    request = web("tiny/SHA256SUMS")
    first = prepare(request, progress)
    fields = {field: getattr(request, field) for field in Request.__slots__}
    assert prepare(Request(**fields | {"source": "http://127.0.0.1:9/tiny/SHA256SUMS"}), progress) == first


@pytest.mark.fault(
    "the connection to the web server is cut in the middle of a tar",
    "`Preparing`",
    "the next request is for the missing bytes only",
)
def test_a_cut_connection_goes_on_where_it_broke(
    web: Requested,
    requested: Requested,
    progress: Progress,
    root: Path,
    checkpoint: Path,
    server: WebServer,
    naps: list[float],
) -> None:
    pack(checkpoint, root / "tiny.tar", mode="w")
    with faulty_proxy.in_front_of(server.address) as proxy:
        proxy.about, proxy.cut_after, proxy.times = "GET /tiny.tar", 5000, 2
        revision = sha256((root / "tiny.tar").read_bytes())
        prepare(requested(f"{proxy.address}/tiny.tar", revision=revision, endpoint=None), progress)
    assert len(proxy.ranges()) == 2
    assert naps == [1.0, 1.0]


def test_a_stalled_tar_goes_on_in_the_next_attempt(
    web: Requested,
    requested: Requested,
    progress: Progress,
    root: Path,
    checkpoint: Path,
    server: WebServer,
    naps: list[float],
) -> None:
    pack(checkpoint, root / "tiny.tar", mode="w")
    request = web("tiny.tar")
    with faulty_proxy.in_front_of(server.address) as proxy:
        proxy.about, proxy.cut_after, proxy.stall = "GET /tiny.tar", 5000, True
        stalled = requested(f"{proxy.address}/tiny.tar", revision=request.revision, endpoint=None, stall_seconds=1.0)
        with pytest.raises(errors.Stalled):
            prepare(stalled, progress)
    server.requests.clear()
    prepare(request, progress)
    assert next(what for what in server.requests if what[0] == "GET")[2].startswith("bytes=")


@pytest.mark.parametrize("name", ["tiny.tar", "tiny/SHA256SUMS"])
def test_what_has_another_sha256_is_never_read(
    web: Requested, progress: Progress, root: Path, published: Path, name: str
) -> None:
    pack(published, root / "tiny.tar", mode="w")
    with pytest.raises(errors.ChecksumMismatch, match="expected 00"):
        prepare(web(name, revision="0" * 64), progress)
    assert not web(name).output.exists()


def test_a_file_that_the_list_does_not_promise_is_refused(web: Requested, progress: Progress, published: Path) -> None:
    weights = (published / LARGE).read_bytes()
    (published / LARGE).write_bytes(weights[:-1] + b"\xff")
    with pytest.raises(errors.ChecksumMismatch, match=LARGE):
        prepare(web("tiny/SHA256SUMS"), progress)


def test_a_list_with_a_missing_file_says_which(web: Requested, progress: Progress, published: Path) -> None:
    (published / "vocab.txt").unlink()
    with pytest.raises(errors.SourceFileNotFound, match=r"vocab\.txt"):
        prepare(web("tiny/SHA256SUMS"), progress)


@pytest.mark.parametrize(
    "text",
    [
        "<html>not found</html>",
        f"{'0' * 64}  ../../etc/passwd\n",
        f"{'0' * 64}  /etc/passwd\n",
        f"{'0' * 64} file\n",
        f"{'0' * 63}  file\n",
        f"{'0' * 64}  a\n{'1' * 64}  a\n",
        f"\\{'0' * 64}  a\\nb\n",
        "\0" * 600,
    ],
)
def test_what_is_neither_tar_nor_list_is_refused(web: Requested, progress: Progress, root: Path, text: str) -> None:
    (root / "index").write_text(text)
    with pytest.raises(errors.Unsupported, match="neither a tar archive nor a checksum list"):
        prepare(web("index"), progress)
    assert not (web("index").output.parent / ".staging").exists()


def member(name: str, content: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    found = tarfile.TarInfo(name)
    found.size = len(content)
    for field, value in fields.items():
        setattr(found, field, value)
    return found, content


EVIL = {
    "absolute": member("/etc/cron.d/evil"),
    "climbing": member("a/../../evil"),
    "climbing-at-once": member("../evil"),
    "symlink": member("link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard-link": member("link", b"", type=tarfile.LNKTYPE, linkname="config.json"),
    "device": member("device", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "block-device": member("device", b"", type=tarfile.BLKTYPE),
    "pipe": member("pipe", b"", type=tarfile.FIFOTYPE),
    "sparse": member("sparse", b"", type=tarfile.GNUTYPE_SPARSE),
    "control-character": member("a\nb"),
    "backslash": member("a\\b"),
    "twice": member("config.json"),
    "file-below-a-file": member("config.json/evil"),
    "folder-that-climbs": member("../folder", b"", type=tarfile.DIRTYPE),
}


@pytest.mark.parametrize("kind", EVIL)
def test_a_tar_with_more_than_plain_files_is_refused(
    web: Requested, progress: Progress, root: Path, checkpoint: Path, kind: str
) -> None:
    with tarfile.open(root / "evil.tar", "w") as tar:
        tar.add(checkpoint / "config.json", arcname="config.json")
        info, content = EVIL[kind]
        tar.addfile(info, io.BytesIO(content))
    with pytest.raises(errors.Unsupported, match="tar"):
        prepare(web("evil.tar"), progress)
    request = web("evil.tar")
    assert not any(path.name in {"evil", "link", "folder"} for path in request.output.parent.parent.rglob("*"))
    assert not (request.output.parent / ".staging").exists()


def test_a_tar_that_claims_more_than_the_volume_has_is_refused_by_its_header(
    web: Requested, progress: Progress, root: Path
) -> None:
    info, _ = member("model.safetensors")
    info.size = 1 << 60
    (root / "bomb.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)
    with pytest.raises(errors.InsufficientSpace, match=r"model\.safetensors"):
        prepare(web("bomb.tar"), progress)


def test_a_tar_of_too_many_files_is_refused(
    web: Requested, progress: Progress, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encoder_plugins.prep.sources.archive.MOST_FILES", 3)
    with tarfile.open(root / "many.tar", "w") as tar:
        for number in range(4):
            info, content = member(str(number))
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(errors.Unsupported, match="more than 3"):
        prepare(web("many.tar"), progress)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_truncated_tar_is_refused(
    web: Requested, progress: Progress, root: Path, checkpoint: Path, mode: str
) -> None:
    whole = pack(checkpoint, root / "whole.tar", mode=mode).read_bytes()
    (root / "half.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(errors.Unsupported, match="can't be read"):
        prepare(web("half.tar"), progress)


@pytest.mark.parametrize(
    ("status", "headers", "error", "waits"),
    [
        (401, {}, errors.AuthFailed, []),
        (403, {}, errors.AuthFailed, []),
        (404, {}, errors.SourceFileNotFound, []),
        (400, {}, errors.Unsupported, []),
        (500, {}, errors.DownloadFailed, [1.0, 2.0, 4.0, 8.0]),
        (429, {"Retry-After": "7"}, errors.RateLimited, [7.0] * 4),
        (503, {"Retry-After": "3600"}, errors.RateLimited, []),
    ],
)
def test_a_status_has_its_reason(
    web: Requested,
    progress: Progress,
    published: Path,
    server: WebServer,
    naps: list[float],
    status: int,
    headers: dict[str, str],
    error: type[errors.PrepareError],
    waits: list[float],
) -> None:
    server.statuses["/tiny/SHA256SUMS"] = (status, headers)
    with pytest.raises(error) as caught:
        prepare(web("tiny/SHA256SUMS"), progress)
    assert type(caught.value) is error
    assert naps == waits


def test_a_redirect_is_followed_and_not_reported(
    web: Requested, requested: Requested, progress: Progress, published: Path, server: WebServer, naps: list[float]
) -> None:
    request = web("tiny/SHA256SUMS")
    for path, target in (("/moved", "/tiny/SHA256SUMS"), ("/lost", "/nowhere?signature=secret")):
        server.statuses[path] = (302, {"Location": target})
    with pytest.raises(errors.SourceFileNotFound) as caught:
        prepare(requested(f"{server.address}/lost", revision="0" * 64, endpoint=None), progress)
    assert "secret" not in str(caught.value)
    found = requested(f"{server.address}/tiny/x/../SHA256SUMS", revision=request.revision, endpoint=None)
    prepare(found, progress)


@pytest.mark.parametrize(
    ("address", "changes"),
    [
        ("http://user:password@127.0.0.1/tiny.tar", {"revision": "0" * 64}),
        ("http:///tiny.tar", {"revision": "0" * 64}),
        ("http://127.0.0.1/tiny.tar", {"revision": None}),
        ("http://127.0.0.1/tiny.tar", {"revision": "0" * 40}),
    ],
)
def test_an_address_that_is_not_pinned_or_holds_a_password_is_refused(
    requested: Requested, progress: Progress, address: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(errors.Unsupported) as caught:
        prepare(requested(address, endpoint=None, **changes), progress)
    assert "password@" not in str(caught.value)


def test_a_server_need_not_report_sizes(
    web: Requested, progress: Progress, published: Path, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "encoder_plugins.prep.tests.web_server._Handler.do_HEAD", lambda self: self._answer(405, b"", {})
    )
    prepare(web("tiny/SHA256SUMS"), progress)
    manifest.verify(web("tiny/SHA256SUMS").output)
