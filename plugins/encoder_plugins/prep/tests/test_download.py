"""Downloads of one file from sources that do not do what they were requested to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.artifact.staging import Staging
from encoder_plugins.errors import ChecksumMismatch, DownloadFailed
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.checksums import check
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources.download import Open, receive
from encoder_plugins.prep.sources.download_ledger import Received
from encoder_plugins.prep.sources.http import WebSource
from encoder_plugins.prep.sources.huggingface import HubSource
from encoder_plugins.prep.sources.retry import Retries, RetryPolicy

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = SourceFile(path="weights", size=len(CONTENT), sha256=SHA256)
UNKNOWN = SourceFile(path="weights", size=-1, sha256=SHA256)
HALF = len(CONTENT) // 2


def source(*answers: Callable[[int], tuple[int, Iterator[bytes]]]) -> tuple[Open, list[int]]:
    """Return a source that answers one request after the other, and the bytes that they began at."""
    rest, requests = iter(answers), []

    @contextmanager
    def open_at(start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        requests.append(start)
        yield next(rest)(start)

    return open_at, requests


def from_start(start: int) -> tuple[int, Iterator[bytes]]:
    """Send what was requested."""
    return start, iter([CONTENT[start : start + 100], CONTENT[start + 100 :]])


def whole(start: int) -> tuple[int, Iterator[bytes]]:
    """Send everything, whatever was requested."""
    return 0, iter([CONTENT[:100], CONTENT[100:]])


def torn(start: int) -> tuple[int, Iterator[bytes]]:
    """End in the middle."""
    return start, iter([CONTENT[start:HALF]])


@pytest.mark.parametrize("file", [FILE, UNKNOWN])
@pytest.mark.parametrize(
    ("there", "answers", "requests"),
    [
        (b"", [from_start], [0]),
        (CONTENT[:HALF], [from_start], [HALF]),
        (CONTENT[:HALF], [whole], [HALF]),
        # what is there is of an older content: the source begins again, and nothing of it stays
        (bytes(HALF), [whole], [HALF]),
    ],
)
def test_a_download_goes_on_or_begins_again(
    tmp_path: Path, file: SourceFile, there: bytes, answers: list[Callable[..., object]], requests: list[int]
) -> None:
    lines: list[dict[str, object]] = []
    progress, partial = Progress(lines.append), tmp_path / "partial"
    if there:
        partial.write_bytes(there)
    open_at, requested = source(*answers)  # type: ignore[arg-type]
    progress.start("download", len(CONTENT))
    receive(file, partial, open_at, Retries(RetryPolicy()), progress)
    assert (partial.read_bytes(), requested) == (CONTENT, requests)
    assert lines[-1]["bytes"] == len(CONTENT)


def test_a_file_that_is_whole_or_too_long_is_not_trusted_for_its_length(tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    partial.write_bytes(CONTENT)
    open_at, requested = source()
    receive(FILE, partial, open_at, Retries(RetryPolicy()), Progress(lambda _: None))
    assert requested == []
    partial.write_bytes(CONTENT + b"more")
    open_at, requested = source(from_start)
    receive(FILE, partial, open_at, Retries(RetryPolicy()), Progress(lambda _: None))
    assert (partial.read_bytes(), requested) == (CONTENT, [0])


def test_an_answer_that_ends_early_is_continued_as_often_as_the_policy_allows(
    tmp_path: Path, naps: list[float]
) -> None:
    open_at, requested = source(torn, from_start)
    receive(FILE, tmp_path / "partial", open_at, Retries(RetryPolicy()), Progress(lambda _: None))
    assert ((tmp_path / "partial").read_bytes(), requested, len(naps)) == (CONTENT, [0, HALF], 1)
    open_at, requested = source(*repeat(torn, 9))
    with pytest.raises(DownloadFailed, match=f"ended after {HALF} of {len(CONTENT)} bytes"):
        receive(FILE, tmp_path / "other", open_at, Retries(RetryPolicy()), Progress(lambda _: None))
    assert requested == [0, *[HALF] * (RetryPolicy().attempts - 1)]


def test_a_source_that_begins_again_each_time_is_given_up(tmp_path: Path, naps: list[float]) -> None:
    def fails_after(end: int) -> Callable[[int], tuple[int, Iterator[bytes]]]:
        return lambda _: (0, iter([CONTENT[:end]]))

    # what counts is how far one answer came
    ends = [100, 50, 200, 200, *repeat(150, 9)]
    open_at, requested = source(*map(fails_after, ends))
    with pytest.raises(DownloadFailed, match=f"ended after 150 of {len(CONTENT)} bytes"):
        receive(FILE, tmp_path / "partial", open_at, Retries(RetryPolicy()), Progress(lambda _: None))
    assert len(requested) == 3 + RetryPolicy().attempts - 1


@pytest.mark.parametrize("size", [len(CONTENT), 0])
def test_an_endless_answer_ends_where_the_file_should(tmp_path: Path, size: int) -> None:
    sent: list[bytes] = []

    def endless(start: int) -> tuple[int, Iterator[bytes]]:
        return start, (sent.append(chunk) or chunk for chunk in repeat(bytes(1000), 1_000))  # type: ignore[func-returns-value]

    open_at, _ = source(endless)
    with pytest.raises(ChecksumMismatch, match=f"longer than the {size} bytes"):
        receive(
            replace(FILE, size=size), tmp_path / "partial", open_at, Retries(RetryPolicy()), Progress(lambda _: None)
        )
    assert len(sent) == size // 1000 + 1
    assert not (tmp_path / "partial").exists()


def test_an_empty_file_stays_empty(tmp_path: Path) -> None:
    empty, partial = SourceFile(path="empty", size=0, sha256=hashlib.sha256(b"").hexdigest()), tmp_path / "partial"
    # what is there is of an older content
    partial.write_bytes(b"older")
    open_at, requested = source(lambda start: (start, iter([])))
    receive(empty, partial, open_at, Retries(RetryPolicy()), Progress(lambda _: None))
    assert (partial.read_bytes(), requested) == (b"", [0])
    open_at, _ = source(lambda start: (start, iter([b"1", b"2"])))
    with pytest.raises(ChecksumMismatch, match="longer than the 0 bytes"):
        receive(empty, partial, open_at, Retries(RetryPolicy()), Progress(lambda _: None))
    assert not partial.exists()


@pytest.mark.parametrize("file", [FILE, UNKNOWN])
def test_other_bytes_of_the_same_length_are_removed(tmp_path: Path, file: SourceFile) -> None:
    open_at, _ = source(lambda start: (start, iter([bytes(len(CONTENT))])))
    with pytest.raises(ChecksumMismatch, match="hashes to"):
        receive(file, tmp_path / "partial", open_at, Retries(RetryPolicy()), Progress(lambda _: None))
    assert not (tmp_path / "partial").exists()


@pytest.mark.parametrize(
    ("promised", "says"),
    [
        ({"size": 4}, None),
        ({"size": -1}, None),
        ({"size": 5}, "has 4 bytes, expected 5"),
        ({"size": 3}, "has 4 bytes, expected 3"),
        ({"size": 0}, "has 4 bytes, expected 0"),
        # `git hash-object` of the same bytes
        ({"size": 4, "git_sha1": "30d74d258442c7c65512eafab474568dd706c430"}, None),
        ({"size": 4, "git_sha1": "0" * 40}, "hashes to 30d74d25"),
        ({"size": -1, "sha256": hashlib.sha256(b"test").hexdigest(), "git_sha1": "0" * 40}, None),
        ({"size": -1, "sha256": "0" * 64}, "hashes to 9f86d081"),
    ],
)
def test_a_file_is_compared_with_all_that_its_source_promised(
    tmp_path: Path, promised: dict[str, Any], says: str | None
) -> None:
    (tmp_path / "file").write_bytes(b"test")
    file = SourceFile(path="file", **promised)
    if says is None:
        check(file, tmp_path / "file")
        return
    with pytest.raises(ChecksumMismatch, match=says):
        check(file, tmp_path / "file")


class WithoutRanges(BaseHTTPRequestHandler):
    """A server that sends whole files only, and refuses a range behind the end."""

    def do_GET(self) -> None:
        assert self.headers["Range"].startswith("bytes=")
        if self.headers["Range"] == f"bytes={len(CONTENT)}-":
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.mark.parametrize(("there", "file"), [(1, FILE), (HALF, FILE), (len(CONTENT), UNKNOWN)])
@pytest.mark.parametrize("kind", ["hub", "web"])
def test_a_server_that_ignores_a_range_gets_its_answer_from_the_beginning(
    tmp_path: Path, kind: str, there: int, file: SourceFile
) -> None:
    partial = tmp_path / "partial"
    partial.write_bytes(CONTENT[:there])
    with ThreadingHTTPServer(("127.0.0.1", 0), WithoutRanges) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, 0.01)
        address = f"http://127.0.0.1:{server.server_port}"
        policy = RetryPolicy(attempts=1)
        try:
            found: HubSource | WebSource = (
                HubSource("a/b", "1" * 40, endpoint=address, token=None, policy=policy)
                if kind == "hub"
                else WebSource(f"{address}/weights", SHA256, staging=Staging.beside(tmp_path / "key"), policy=policy)
            )
            found.fetch(file, partial, Progress(lambda _: None))
            found.close()
        finally:
            server.shutdown()
    assert partial.read_bytes() == CONTENT


def test_only_what_was_noted_with_its_tag_is_known_again(tmp_path: Path) -> None:
    ledger, content = tmp_path / "received.jsonl", tmp_path / "content"
    content.write_bytes(CONTENT)
    tagged = SourceFile(path="weights", size=len(CONTENT), tag="1")
    other = SourceFile(path="weights", size=len(CONTENT), tag="2")
    received = Received(ledger)
    assert received.known(tagged) is None
    received.note(tagged, content)
    # a source that reports a hash needs no note
    for named in (
        FILE,
        replace(tagged, sha256="0" * 64),
        replace(tagged, git_sha1="0" * 40),
        replace(tagged, tag=None),
    ):
        received.note(named, content)
        assert received.known(named) == named
    with ledger.open("a") as stream:
        # what is no entry takes no other one with it, and neither does a torn one
        stream.write('[]\n"x"\n{"path": "weights"}\n{"path": ["weights"], "tag": "2", "sha256": "x"}\n')
        stream.write('{"path": "weights", "tag": "2", "sha')
    again = Received(ledger)
    assert again.known(other) is None
    found = again.known(tagged)
    assert found is not None
    assert (found.sha256, found.tag) == (SHA256, "1")
    again.note(other, content)
    assert Received(ledger).known(other) is not None
    assert len([line for line in ledger.read_text().splitlines() if line.endswith("}")]) == 4
    both = [tagged, SourceFile(path="a", size=1, sha256="0" * 64)]
    assert again.digest(both) == again.digest(both[::-1]) != again.digest(both[:1])
