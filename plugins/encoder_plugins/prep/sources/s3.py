"""Take a checkpoint from an S3 bucket, by botocore's client: it signs, speaks to every dialect, and words the errors.

A bucket has no revisions. What was listed is pinned by each object's version where the bucket keeps versions, and by its
ETag everywhere, so that an object that changes while it is downloaded is noticed; the revision that an artifact reports is the
digest of the bytes that came.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.session
import urllib3.exceptions
from botocore import UNSIGNED, exceptions
from botocore.config import Config

from encoder_plugins.errors import (
    AuthFailed,
    ChecksumMismatch,
    DownloadFailed,
    RateLimited,
    RepositoryNotFound,
    SourceFileNotFound,
    Unsupported,
)
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.checksums import agreed
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Credentials
from encoder_plugins.prep.sources.download import receive
from encoder_plugins.prep.sources.retry import Retries, RetryPolicy, TryAgain, retry_after

SCHEME = "s3://"
_CHUNK = 1 << 18
# error codes that mean that access is denied; each store has some of them
_REFUSED = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "XAdminUserNotFound",
    }
)
_GIVE = "give credentials that may list and read it"
# the environment has no credentials, or half of them
_NO_IDENTITY = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound)
# the agent or the metadata server of a workload identity does not answer, or not yet
_IDENTITY_UNREACHABLE = (exceptions.CredentialRetrievalError, exceptions.MetadataRetrievalError)
_BUSY = frozenset({"SlowDown", "RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequests"})


class ObjectStoreSource:
    """What lies below one prefix of one bucket, or one object."""

    def __init__(
        self,
        address: str,
        *,
        endpoint: str | None,
        region: str | None,
        credentials: Credentials | None,
        policy: RetryPolicy,
        ambient: bool = False,
        one_object: bool = False,
    ) -> None:
        """Take an address.

        Args:
            address: `s3://bucket/prefix`, or `s3://bucket/key` for ``one_object``.
            endpoint: The store's address; None for the one that the client finds in the environment (`AWS_ENDPOINT_URL_S3`),
                or that of AWS.
            region: What requests are signed for; None for `us-east-1`.
            credentials: Sign the requests; they are not sent.
            policy: How requests are repeated.
            ambient: Without ``credentials``, requests have those of the environment, or else none.
            one_object: The address is that of one object, which is taken by whatever name a ``SourceFile`` has for messages.

        Raises:
            Unsupported: The address names no bucket, or no object.
        """
        self._bucket, _, below = address.removeprefix(SCHEME).partition("/")
        self._key = below if one_object else None
        if not self._bucket:
            raise Unsupported(f"{address!r} names no bucket; write s3://bucket/{'key' if one_object else 'prefix'}")
        if one_object and (not below or below.endswith("/")):
            raise Unsupported(f"{address!r} names no object; write s3://bucket/key")
        self._prefix = f"{below.strip('/')}/" if below.strip("/") else ""
        self._host = (urlsplit(endpoint).hostname if endpoint else None) or "s3"
        self._retries = Retries(policy)
        self._versions: dict[str, str] = {}
        self._client = _client(endpoint, region, credentials, policy, ambient=ambient)

    def describe(self) -> dict[str, str]:
        """Say where the files came from. Not the endpoint: a mirror's artifact is the same artifact."""
        return {"kind": "s3", "bucket": self._bucket, "prefix": self._prefix.rstrip("/")}

    def listing(self, progress: Progress) -> tuple[SourceFile, ...]:
        """List every object below the prefix, with its size and its ETag.

        Raises:
            PrepareError: The store refused, could not be reached, or has nothing there.
        """

        def attempt() -> tuple[SourceFile, ...]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            with self._translated(f"s3://{self._bucket}/{self._prefix}"):
                found = [entry for page in pages for entry in page.get("Contents", [])]
            return tuple(
                SourceFile(path=entry["Key"].removeprefix(self._prefix), size=entry["Size"], tag=entry.get("ETag", ""))
                # a key that ends so is a folder that some tool has made visible
                for entry in found
                if not entry["Key"].endswith("/")
            )

        files = self._retries.run(attempt, progress)
        if not files:
            raise SourceFileNotFound(f"s3://{self._bucket}/{self._prefix} has no objects")
        if not all(file.tag for file in files):
            raise Unsupported(f"{self._host} reports no ETags, so a changed object could not be detected")
        return files

    def completed(self, file: SourceFile, progress: Progress) -> SourceFile:
        """Request an object's version and, where the store keeps one, its sha256; it must still be what was listed, if it was.

        Raises:
            ChecksumMismatch: It was changed, or the store states another sha256 than the one that is known.
            PrepareError: The store refused, or could not be reached.
        """

        def attempt() -> SourceFile:
            with self._translated(file.path):
                known = self._client.head_object(**self._object(file), ChecksumMode="ENABLED")
            if version := known.get("VersionId", ""):
                self._versions[file.path] = version
            whole = known.get("ChecksumType") == "FULL_OBJECT"
            checksum = agreed(file, _hex(known.get("ChecksumSHA256", "")) if whole else None, self._host)
            return replace(file, size=known["ContentLength"], sha256=checksum, tag=file.tag or known.get("ETag"))

        return self._retries.run(attempt, progress)

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Download an object to ``partial``, resuming after the bytes that are there.

        Raises:
            ChecksumMismatch: It is not the object that was listed any more.
            PrepareError: The store refused, stalled, or failed for too long.
        """
        receive(file, partial, lambda start: self._open(file, start), self._retries, progress)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def _open(self, file: SourceFile, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Request an object from a byte on."""
        wanted = self._object(file)
        if start:
            wanted["Range"] = f"bytes={start}-"
        with self._translated(file.path):
            answer = self._client.get_object(**wanted)
            # entered, a body is the connection itself, which gives bytes as they come and not only whole chunks
            with answer["Body"] as connection:
                partly = str(answer.get("ContentRange", "")).startswith(f"bytes {start}-")
                yield (start if partly else 0), iter(lambda: connection.read1(_CHUNK), b"")

    def _object(self, file: SourceFile) -> dict[str, str]:
        """Name an object, and its version and content where those are known."""
        known = {"VersionId": self._versions.get(file.path), "IfMatch": file.tag}
        key = f"{self._prefix}{file.path}" if self._key is None else self._key
        return {"Bucket": self._bucket, "Key": key, **{name: value for name, value in known.items() if value}}

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn the client's errors into ours."""
        try:
            yield
        except exceptions.ClientError as error:
            raise _refusal(error, what, self._host) from error
        except (
            exceptions.ReadTimeoutError,
            exceptions.ConnectTimeoutError,
            urllib3.exceptions.ReadTimeoutError,
        ) as error:
            raise self._retries.timed_out(what, self._host) from error
        except (exceptions.HTTPClientError, exceptions.ConnectionError, urllib3.exceptions.HTTPError) as error:
            raise TryAgain(DownloadFailed(f"{what}: {self._host}: {type(error).__name__}: {error}")) from error
        except RecursionError as error:
            # the client follows a redirect by a new request, and what responds is not an object store
            raise Unsupported(f"{what}: {self._host} redirects for ever") from error
        except _NO_IDENTITY as error:
            raise AuthFailed(f"{what}: {error}; {_GIVE}") from error
        except _IDENTITY_UNREACHABLE as error:
            raise TryAgain(DownloadFailed(f"{what}: {error}")) from error
        except exceptions.BotoCoreError as error:
            # an impossible bucket name or region: refused before a byte is sent
            raise Unsupported(f"{what}: {error}") from error


def _client(
    endpoint: str | None, region: str | None, credentials: Credentials | None, policy: RetryPolicy, *, ambient: bool
) -> Any:
    """Make the client; its own retries are off, because ours report progress and detect a stall."""
    session = botocore.session.Session()
    if credentials is not None:
        session.set_credentials(credentials.access_key, credentials.secret_key, credentials.session_token)
    config = Config(
        signature_version="s3v4" if credentials is not None or ambient else UNSIGNED,
        connect_timeout=min(policy.silence, 30.0),
        read_timeout=policy.silence,
        retries={"total_max_attempts": 1},
        # a store of one's own seldom has a name for each bucket
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        # credentials of the environment are looked for here
        return session.create_client("s3", region_name=region or "us-east-1", endpoint_url=endpoint, config=config)
    except _NO_IDENTITY as error:
        raise AuthFailed(f"{error}; {_GIVE}") from error
    except _IDENTITY_UNREACHABLE as error:
        raise DownloadFailed(str(error)) from error
    except (exceptions.BotoCoreError, ValueError) as error:
        raise Unsupported(f"no such S3 endpoint or region: {error}") from error


def _hex(base64_text: str) -> str | None:
    """Turn a checksum as S3 writes it into the usual one."""
    try:
        found = base64.b64decode(base64_text, validate=True).hex()
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == 64 else None


def _refusal(error: exceptions.ClientError, what: str, host: str) -> Exception:
    """Find the reason behind a store's answer."""
    answer: Any = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    detail = str(answer.get("Error", {}).get("Message", ""))[:200]
    message = f"{what}: {host} answered {status}" + (f": {code}: {detail}" if code else "")
    if code == "NoSuchBucket":
        return RepositoryNotFound(message)
    if status == 412:
        return ChecksumMismatch(f"{what} was changed in the bucket while it was prepared: try again when it rests")
    if code in _REFUSED or status in {401, 403}:
        return AuthFailed(f"{message}; {_GIVE}")
    if status in {404, 410}:
        return SourceFileNotFound(message)
    if code in _BUSY or status == 429:
        return TryAgain(RateLimited(message), retry_after(headers.get("retry-after")))
    if status >= 500:
        return TryAgain(DownloadFailed(message), retry_after(headers.get("retry-after")))
    return Unsupported(message)
