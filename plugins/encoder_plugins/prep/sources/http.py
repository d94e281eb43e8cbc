"""Take a checkpoint from a web server: one tar, or one folder whose files a list of sha256 sums names.

The list is what `sha256sum` prints, and its files lie beside it. Either is pinned by its own sha256, which is
compared before anything of it is read, so that the server is never trusted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import httpx

from encoder_plugins.artifact.manifest import is_inside
from encoder_plugins.artifact.staging import Staging, discard, require_space
from encoder_plugins.errors import AuthFailed, DownloadFailed, RateLimited, SourceFileNotFound, Unsupported
from encoder_plugins.prep import checksums
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources import archive
from encoder_plugins.prep.sources.download import receive
from encoder_plugins.prep.sources.local import FolderSource
from encoder_plugins.prep.sources.retry import Retries, RetryPolicy, TryAgain, retry_after

SCHEMES = ("https://", "http://")
_LARGEST_INDEX = 4 << 20
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](\S.*)")


class WebSource:
    """One address, whose content has the requested sha256."""

    def __init__(
        self,
        address: str,
        sha256: str | None,
        *,
        staging: Staging,
        policy: RetryPolicy,
        most_bytes: int | None = None,
    ) -> None:
        """Take an address.

        Args:
            address: The URL.
            sha256: What its content must hash to.
            staging: The preparation's folders.
            policy: How requests are repeated.
            most_bytes: A longer file is refused, at the latest when so much of it was received; None for no limit.

        Raises:
            Unsupported: It is not pinned, or carries a password.
        """
        if not sha256 or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise Unsupported("a tar or a list on a web server is pinned by its sha256 (64 hex)")
        parts = urlsplit(address)
        if parts.username or parts.password or not parts.hostname:
            raise Unsupported("the address must have a host, and neither user nor password")
        self._address, self._host, self._sha256 = address, parts.hostname, sha256
        self._staging = staging
        self._most_bytes = most_bytes
        self._retries = Retries(policy)
        self._timeout = httpx.Timeout(policy.silence, connect=min(policy.silence, 30.0))
        self._client = httpx.Client(follow_redirects=True, timeout=self._timeout)
        self._unpacked: FolderSource | None = None

    def describe(self) -> dict[str, str]:
        """Say where the files came from. Not the address: what has this sha256 is the same everywhere."""
        return {"kind": "http", "revision": self._sha256}

    def listing(self, progress: Progress) -> tuple[SourceFile, ...]:
        """Download the tar and unpack it, or download the list, and return the files.

        Raises:
            PrepareError: The server refused, or could not be reached; or it is neither.
        """
        unpacked = self._staging.unpacked
        if not unpacked.is_dir():
            document = self._download(progress)
            if not archive.is_tar(document):
                return tuple(self._read(document))
            progress.start("unpack", document.stat().st_size)
            unfinished = unpacked.with_name(f"{unpacked.name}.unfinished")
            discard(unfinished)
            archive.unpack(document, unfinished, progress)
            # only a whole folder has this name
            unfinished.rename(unpacked)
        discard(self._staging.document)
        self._unpacked = FolderSource(archive.root_of(unpacked), None)
        return self._unpacked.listing(progress)

    def completed(self, file: SourceFile, progress: Progress) -> SourceFile:
        """Request a file's size, which a list does not have; it stays unknown if the server does not report it."""
        if file.size >= 0:
            return file

        def attempt() -> SourceFile:
            with self._translated(file.path):
                answer = self._client.head(self._url(file), headers={"Accept-Encoding": "identity"})
            # a signed address is for one method, and a refusal of both is found by the download
            if answer.status_code in {403, 405, 501}:
                return file
            self._refuse(answer, file.path)
            length = answer.headers.get("Content-Length", "")
            # 0 may only say that the answer to this request has no body
            return replace(file, size=int(length) or -1) if length.isdecimal() else file

        return self._retries.run(attempt, progress)

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Download a file to ``partial``, checked.

        Raises:
            ChecksumMismatch: It is not what the list promised; it is removed.
            PrepareError: The server refused, stalled, or failed for too long.
        """
        if self._unpacked is None:
            receive(
                file,
                partial,
                lambda start: self._open(file, start),
                self._retries,
                progress,
                most_bytes=self._most_bytes,
            )
            return
        discard(partial)
        found = self._unpacked.path(file)
        try:
            # the same bytes under a second name: a volume need not hold them twice
            os.link(found, partial)
        except OSError:
            shutil.copyfile(found, partial)
        progress.skip(file.size)
        checksums.check(file, partial)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _download(self, progress: Progress) -> Path:
        """Download the document of the address, and check it."""
        target = self._staging.document
        wanted = SourceFile(path=Path(urlsplit(self._address).path).name or "index", size=-1, sha256=self._sha256)
        if not target.exists() or checksums.sha256_of(target) != self._sha256:
            wanted = self.completed(wanted, progress)
            require_space(self._staging, wanted.size)
            progress.start("download", max(wanted.size, 0))
            receive(wanted, target, lambda start: self._open(wanted, start), self._retries, progress)
        return target

    def _read(self, document: Path) -> Iterator[SourceFile]:
        """Read the list."""
        if document.stat().st_size > _LARGEST_INDEX:
            raise Unsupported(
                f"the URL is neither a tar archive nor a checksum list, which has at most {_LARGEST_INDEX} bytes"
            )
        seen: set[str] = set()
        for number, line in enumerate(document.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found = _LINE.fullmatch(line)
            path = found[2].removeprefix("./") if found else ""
            if found is None or not is_inside(path) or path in seen:
                raise Unsupported(
                    f"the URL is neither a tar archive nor a checksum list: line {number} is not <sha256>  <relative path>"
                )
            seen.add(path)
            yield SourceFile(path=path, size=-1, sha256=found[1].lower())

    @contextmanager
    def _open(self, file: SourceFile, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Request a file from a byte on."""
        # the missing bytes of a compressed response could not be counted
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with self._translated(file.path), self._client.stream("GET", self._url(file), headers=headers) as answer:
            if start and answer.status_code == 416:
                # all of it is there already, or it became shorter; the check finds out which
                yield start, iter(())
                return
            self._refuse(answer, file.path)
            partly = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            # what is stored compressed may be sent as such, and its sha256 is of that
            yield (start if partly else 0), answer.iter_raw()

    def _url(self, file: SourceFile) -> str:
        """Name a file's address: of the document itself, or of a file beside the list."""
        if file.sha256 == self._sha256:
            return self._address
        return urljoin(self._address, quote(file.path))

    def _refuse(self, answer: httpx.Response, what: str) -> None:
        """Find the reason behind a status that is no success."""
        status = answer.status_code
        message = f"{what}: {answer.url.host} answered {status}"
        if answer.is_success:
            return
        if status in {401, 403, 407}:
            raise AuthFailed(message)
        if status in {404, 410}:
            raise SourceFileNotFound(message)
        if status in {429, 503}:
            raise TryAgain(RateLimited(message), retry_after(answer.headers.get("Retry-After")))
        if status >= 500 or status == 408:
            raise TryAgain(DownloadFailed(message))
        raise Unsupported(message)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn the client's errors into ours, without the addresses in them: a redirect's may be signed."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise self._retries.timed_out(what, self._host) from error
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise TryAgain(DownloadFailed(f"{what}: {self._host}: {type(error).__name__}: {error}")) from error
