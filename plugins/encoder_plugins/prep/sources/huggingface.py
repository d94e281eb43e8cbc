"""Fetch a checkpoint from a Hugging Face hub, so that it ends: with every byte checked, or with a reason.

The hub's own client lists the repository, authenticates and words the errors. The bytes are streamed here, over that
client's session, because its download function (2.4) neither resumes across processes, nor distinguishes a stall from a slow
link, nor bounds how long it obeys Retry-After.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import httpx
from huggingface_hub import HfApi, get_hf_file_metadata, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from encoder_plugins.errors import (
    AuthFailed,
    ChecksumMismatch,
    DownloadFailed,
    RateLimited,
    RepositoryNotFound,
    RevisionNotFound,
    SourceFileNotFound,
)
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.checksums import agreed
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources.download import receive
from encoder_plugins.prep.sources.retry import Retries, RetryPolicy, TryAgain, retry_after

DEFAULT_ENDPOINT = "https://huggingface.co"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository.

    Attributes:
        repository_type: Models and data sets are repositories of different types, which may have the same name.
        path: The path in the repository.
    """

    repository_type: Literal["model", "dataset"]
    path: str


class HubSource:
    """One revision of one repository."""

    def __init__(
        self,
        repository: str,
        revision: str | None,
        *,
        endpoint: str | None,
        token: str | None,
        policy: RetryPolicy,
        only: HubFile | None = None,
        most_bytes: int | None = None,
    ) -> None:
        """Take a repository.

        Args:
            repository: `org/name`.
            revision: A commit, branch or tag; None for `main`.
            endpoint: The hub's address; None for the one of the environment, or the public one.
            token: Sent to the hub; None for anonymous requests.
            policy: How requests are repeated.
            only: The one file that is taken, by whatever name a ``SourceFile`` has for messages; None for a checkpoint, whose files
                are listed.
            most_bytes: A longer file is refused, at the latest when so much of it was received; None for no limit.
        """
        self.repository = repository
        self._only = only
        self._most_bytes = most_bytes
        self.revision = revision or "main"
        self._endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        # False, not None: None would send whatever token the machine has stored
        self._token: str | Literal[False] = token or False
        self._retries = Retries(policy)
        self._timeout = httpx.Timeout(policy.silence, connect=min(policy.silence, 30.0))

    def describe(self) -> dict[str, str]:
        """Say where the files came from. Not the endpoint: a mirror's artifact is the same artifact."""
        return {"kind": "huggingFace", "repo": self.repository, "revision": self.revision}

    def listing(self, progress: Progress) -> tuple[SourceFile, ...]:
        """List the revision's files with sizes and hashes, and pin the revision if it was a branch.

        Raises:
            PrepareError: The hub refused, or could not be reached.
        """
        api = HfApi(endpoint=self._endpoint, token=self._token)

        def attempt() -> tuple[SourceFile, ...]:
            with self._translated(f"{self.repository}@{self.revision}"):
                info = api.model_info(
                    self.repository,
                    revision=self.revision,
                    files_metadata=True,
                    timeout=self._timeout.read,
                )
            if not info.sha or not info.siblings:
                raise SourceFileNotFound(f"{self.repository}@{self.revision} has no files")
            if _SHA1.fullmatch(self.revision) and info.sha != self.revision:
                raise ChecksumMismatch(f"{self.repository}: {self._host} lists {info.sha} instead of {self.revision}")
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

        return self._retries.run(attempt, progress)

    def completed(self, file: SourceFile, progress: Progress) -> SourceFile:
        """Request a file's size and hash where the listing (of a mirror, say) did not report them.

        Raises:
            ChecksumMismatch: The hub states another sha256 than the one that is known.
            PrepareError: The hub refused, or could not be reached.
        """
        if file.size >= 0 and (file.sha256 or file.git_sha1):
            return file

        def attempt() -> SourceFile:
            with self._translated(file.path):
                known = get_hf_file_metadata(
                    self._url(file),
                    token=self._token,
                    timeout=self._timeout.read,
                    endpoint=self._endpoint,
                )
            tag = known.etag or ""
            return replace(
                file,
                size=file.size if known.size is None else known.size,
                sha256=agreed(file, tag if _SHA256.fullmatch(tag) else None, self._host),
                git_sha1=tag if _SHA1.fullmatch(tag) else None,
            )

        return self._retries.run(attempt, progress)

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Download a file to ``partial``, going on from the bytes that are there, and check it.

        Raises:
            ChecksumMismatch: The bytes are not those that the hub promised; they are removed.
            PrepareError: The hub refused, stalled, or failed for too long.
        """
        receive(
            file, partial, lambda start: self._open(file, start), self._retries, progress, most_bytes=self._most_bytes
        )

    def close(self) -> None:
        """Let go of connections, of which the hub's own client keeps its."""

    @contextmanager
    def _open(self, file: SourceFile, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Request a file from a byte on."""
        # the missing bytes of a compressed response could not be counted
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
        ):
            if start and response.status_code == 416:
                # all of it is there already, or it became shorter; the check finds out which
                yield start, iter(())
                return
            hf_raise_for_status(response)
            partly = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            yield (start if partly else 0), response.iter_bytes()

    def _url(self, file: SourceFile) -> str:
        """Name a file's address at this hub."""
        path, kind = (self._only.path, self._only.repository_type) if self._only else (file.path, "model")
        return hf_hub_url(self.repository, path, repo_type=kind, revision=self.revision, endpoint=self._endpoint)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn the client's errors into ours, without the addresses in them: a redirect's may be signed."""
        try:
            yield
        except HfHubHTTPError as error:
            raise _refusal(error.response, what, self._host) from error
        except httpx.TimeoutException as error:
            raise self._retries.timed_out(what, self._host) from error
        except HFValidationError as error:
            raise RepositoryNotFound(f"{self.repository!r} is no repository's name: {error}") from error
        except OfflineModeIsEnabled as error:
            raise DownloadFailed("HF_HUB_OFFLINE is set, so that nothing can be downloaded") from error
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise TryAgain(DownloadFailed(f"{what}: {self._host}: {type(error).__name__}: {error}")) from error
        except (ValueError, KeyError, TypeError) as error:
            raise TryAgain(DownloadFailed(f"{what}: {self._host} gave an answer that is not a hub's")) from error

    @property
    def _host(self) -> str:
        """The hub's name without a user and password that its address may carry."""
        return urlsplit(self._endpoint).hostname or self._endpoint


def _refusal(response: httpx.Response, what: str, hub: str) -> Exception:
    """Find the reason behind an HTTP status, by the code that a hub puts beside it where there is one."""
    status, code, host = response.status_code, response.headers.get("X-Error-Code"), response.url.host
    detail = response.headers.get("X-Error-Message", "")[:200]
    message = f"{what}: {host} answered {status}" + (f": {detail}" if detail else "")
    if host != hub and status != 429:
        # the storage that a hub sends its clients to knows nothing of tokens or repositories
        return TryAgain(DownloadFailed(message))
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
        return TryAgain(RateLimited(message), retry_after(response.headers.get("Retry-After")))
    return TryAgain(DownloadFailed(message))
