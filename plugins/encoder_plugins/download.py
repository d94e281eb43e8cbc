"""Fetches a checkpoint from a Hugging Face hub, so that it ends: with every byte checked, or with a reason.

The hub's own client lists the repository, authenticates and words the errors. The bytes are streamed here, over that
client's session, because its download function (2.4) neither resumes across processes, nor tells a stall from a slow
link, nor bounds how long it obeys Retry-After.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import httpx
from huggingface_hub import HfApi, get_hf_file_metadata, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from encoder_plugins.content import check
from encoder_plugins.errors import (
    AuthFailed,
    ChecksumMismatch,
    DownloadFailed,
    PrepareError,
    RateLimited,
    RepositoryNotFound,
    RevisionNotFound,
    SourceFileNotFound,
    Stalled,
)
from encoder_plugins.progress import Progress
from encoder_plugins.selection import SourceFile

DEFAULT_ENDPOINT = "https://huggingface.co"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to bear with a hub.

    Attributes:
        stall_seconds: Without a byte for so long, the attempt ends.
        attempts: Failures in a row, none of which brought a byte, before the attempt ends.
        backoff: Seconds before the second try; doubled each time.
        longest_wait: A hub that asks to wait longer than this many seconds ends the attempt.
    """

    stall_seconds: float = 120.0
    attempts: int = 5
    backoff: float = 1.0
    longest_wait: float = 300.0


class _TryAgain(Exception):  # noqa: N818 - never leaves this module
    """A failure that another request may not meet."""

    def __init__(self, error: PrepareError, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait


class HubSource:
    """One revision of one repository."""

    def __init__(
        self, repository: str, revision: str | None, *, endpoint: str | None, token: str | None, patience: Patience
    ) -> None:
        self.repository = repository
        self.revision = revision or "main"
        self._endpoint = (endpoint or DEFAULT_ENDPOINT).rstrip("/")
        # False, not None: None would send whatever token the machine has stored
        self._token: str | Literal[False] = token or False
        self._patience = patience
        # a silent hub is asked once more on a new connection before the whole time is up
        silence = patience.stall_seconds / 2
        self._timeout = httpx.Timeout(silence, connect=min(silence, 30.0))
        self._heard = time.monotonic()
        self._received = 0

    def describe(self) -> dict[str, str]:
        """Say where the files came from. Not the endpoint: a mirror's artifact is the same artifact."""
        return {"kind": "huggingFace", "repo": self.repository, "revision": self.revision}

    def listing(self, progress: Progress) -> tuple[SourceFile, ...]:
        """List the revision's files with sizes and hashes, and pin the revision if it was a branch.

        Raises:
            PrepareError: The hub refused, or could not be reached.
        """
        api = HfApi(endpoint=self._endpoint, token=self._token)

        def ask() -> tuple[SourceFile, ...]:
            with self._translated(f"{self.repository}@{self.revision}"):
                info = api.model_info(
                    self.repository,
                    revision=self.revision,
                    files_metadata=True,
                    timeout=self._patience.stall_seconds / 2,
                )
            if not info.sha or not info.siblings:
                raise SourceFileNotFound(f"{self.repository}@{self.revision} has no files")
            self.revision = info.sha
            return tuple(
                SourceFile(
                    path=sibling.rfilename,
                    size=-1 if sibling.size is None else sibling.size,
                    sha256=sibling.lfs.sha256 if sibling.lfs else None,
                    git_sha1=None if sibling.lfs else sibling.blob_id,
                )
                for sibling in info.siblings
            )

        return self._patiently(ask, progress)

    def completed(self, file: SourceFile, progress: Progress) -> SourceFile:
        """Ask for a file's size and hash where the listing (of a mirror, say) did not tell them."""
        if file.size >= 0 and (file.sha256 or file.git_sha1):
            return file

        def ask() -> SourceFile:
            with self._translated(file.path):
                known = get_hf_file_metadata(
                    self._url(file),
                    token=self._token,
                    timeout=self._patience.stall_seconds / 2,
                    endpoint=self._endpoint,
                )
            tag = known.etag or ""
            return replace(
                file,
                size=file.size if known.size is None else known.size,
                sha256=tag if _SHA256.fullmatch(tag) else None,
                git_sha1=tag if _SHA1.fullmatch(tag) else None,
            )

        return self._patiently(ask, progress)

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Bring a file to ``partial``, going on from the bytes that are there, and check it.

        Raises:
            ChecksumMismatch: The bytes are not those that the hub promised; they are removed.
            PrepareError: The hub refused, stalled, or failed for too long.
        """
        if partial.exists():
            progress.add(partial.stat().st_size)
        self._patiently(lambda: self._stream(file, partial, progress), progress)
        try:
            check(file, partial)
        except ChecksumMismatch:
            partial.unlink()
            raise

    def _stream(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Make one request for what is missing of a file."""
        start = partial.stat().st_size if partial.exists() else 0
        if 0 <= file.size < start:
            partial.unlink()
            progress.add(-start)
            start = 0
        if start == file.size:
            return
        # compressed, the bytes that are missing could not be told by their number
        headers = {"Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if start:
            headers["Range"] = f"bytes={start}-"
        with (
            self._translated(file.path),
            get_session().stream(
                "GET", self._url(file), headers=headers, timeout=self._timeout, follow_redirects=True
            ) as response,
            partial.open("ab") as target,
        ):
            hf_raise_for_status(response)
            if start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                # the server sends the whole file, whatever was asked for
                target.truncate(0)
                progress.add(-start)
                start = 0
            for chunk in response.iter_bytes():
                start += len(chunk)
                if 0 <= file.size < start:
                    break
                target.write(chunk)
                # whatever ends this process, the next one has every byte that came
                target.flush()
                progress.add(len(chunk))
                self._received += len(chunk)
                self._heard = time.monotonic()
        if start < file.size:
            raise _TryAgain(DownloadFailed(f"{file.path} ended after {start} of {file.size} bytes"))
        if 0 <= file.size < start:
            partial.unlink()
            raise ChecksumMismatch(f"{file.path} is longer than the {file.size} bytes that the hub listed")

    def _patiently(self, request: Callable[[], _T], progress: Progress) -> _T:
        """Repeat a request as long as that makes sense."""
        failures = 0
        self._heard = time.monotonic()
        while True:
            before = self._received
            try:
                return request()
            except _TryAgain as again:
                failures = 1 if self._received > before else failures + 1
                wait = min(self._patience.backoff * 2 ** (failures - 1), 30.0) if again.wait is None else again.wait
                if failures >= self._patience.attempts or wait > self._patience.longest_wait:
                    raise again.error from again
                progress.note(f"{again.error}; next try in {wait:g} s")
                time.sleep(wait)
                if not isinstance(again.error, Stalled):
                    self._heard = time.monotonic()

    def _url(self, file: SourceFile) -> str:
        """Name a file's address at this hub."""
        return hf_hub_url(self.repository, file.path, revision=self.revision, endpoint=self._endpoint)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn the client's errors into ours, without the addresses in them: a redirect's may be signed."""
        try:
            yield
        except HfHubHTTPError as error:
            raise _refusal(error.response, what, self._host) from error
        except httpx.TimeoutException as error:
            silence = time.monotonic() - self._heard
            message = f"{what}: no byte from {self._host} for {self._patience.stall_seconds:g} s"
            if silence >= self._patience.stall_seconds * 0.9:
                raise Stalled(message) from error
            raise _TryAgain(Stalled(message), wait=0.0) from error
        except HFValidationError as error:
            raise RepositoryNotFound(f"{self.repository!r} is no repository's name: {error}") from error
        except OfflineModeIsEnabled as error:
            raise DownloadFailed("HF_HUB_OFFLINE is set, so that nothing can be downloaded") from error
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _TryAgain(DownloadFailed(f"{what}: {self._host}: {type(error).__name__}: {error}")) from error
        except (ValueError, KeyError, TypeError) as error:
            raise _TryAgain(DownloadFailed(f"{what}: {self._host} gave an answer that is not a hub's")) from error

    @property
    def _host(self) -> str:
        """The hub's name without a user and password that its address may carry."""
        return urlsplit(self._endpoint).hostname or self._endpoint


def _refusal(response: httpx.Response, what: str, hub: str) -> Exception:
    """Find the reason behind an HTTP status, by the code that a hub puts beside it where there is one."""
    status, code, host = response.status_code, response.headers.get("X-Error-Code"), response.url.host
    said = response.headers.get("X-Error-Message", "")[:200]
    message = f"{what}: {host} answered {status}" + (f": {said}" if said else "")
    if host != hub and status < 500 and status != 429:
        # the storage that a hub sends its clients to knows nothing of tokens or repositories
        return _TryAgain(DownloadFailed(message))
    if code == "RevisionNotFound":
        return RevisionNotFound(message)
    if code == "EntryNotFound":
        return SourceFileNotFound(message)
    if code == "RepoNotFound":
        return RepositoryNotFound(f"{message} (or it is private, and needs a token)")
    if status in {401, 403}:
        return AuthFailed(f"{message}; give a token that may read it")
    if status == 404:
        return RepositoryNotFound(message)
    if status == 429:
        return _TryAgain(RateLimited(message), _retry_after(response))
    return _TryAgain(DownloadFailed(message))


def _retry_after(response: httpx.Response) -> float | None:
    """Read for how many seconds the hub asks to be left alone."""
    value = response.headers.get("Retry-After", "").strip()
    return float(value) if value.isdecimal() else None
