"""The sources of a checkpoint: a hub, an object store, a web server, or a folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from encoder_plugins.artifact.manifest import is_inside
from encoder_plugins.artifact.staging import Staging
from encoder_plugins.errors import Unsupported
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Auxiliary, Request
from encoder_plugins.prep.sources.retry import RetryPolicy

_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# as huggingface_hub writes the path of a file
_HUB_FILE = re.compile(
    r"hf://(?P<datasets>datasets/)?(?!datasets/|spaces/)(?P<repository>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{40})/(?P<path>.+)",
    re.ASCII,
)


class FileSource(Protocol):
    """Where files come from."""

    def completed(self, file: SourceFile, progress: Progress) -> SourceFile:
        """Return the file with what the listing did not report."""

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Download a file to ``partial``, checked."""

    def close(self) -> None:
        """Close the connections."""


class Source(FileSource, Protocol):
    """Where a checkpoint comes from."""

    def describe(self) -> dict[str, Any]:
        """Return the origin of the files, for the manifest; `revision` is the one that was listed, if there is one."""

    def listing(self, progress: Progress) -> tuple[SourceFile, ...]:
        """List every file."""


def of(request: Request, staging: Staging) -> Source:
    """Return the source of a request's checkpoint.

    Raises:
        Unsupported: `source` is of no known kind, or its revision is not immutable.
    """
    # imported here: an artifact that exists already needs no client
    policy = RetryPolicy(stall_seconds=request.stall_seconds)
    if request.source.startswith("/"):
        from encoder_plugins.prep.sources.local import FolderSource

        return FolderSource(Path(request.source), request.revision)
    if request.source.startswith("s3://"):
        from encoder_plugins.prep.sources.s3 import ObjectStoreSource

        return ObjectStoreSource(
            request.source,
            endpoint=request.endpoint,
            region=request.region,
            credentials=request.credentials,
            policy=policy,
            ambient=request.ambient_credentials,
        )
    if request.source.startswith(("https://", "http://")):
        from encoder_plugins.prep.sources.http import WebSource

        return WebSource(request.source, request.revision, staging=staging, policy=policy)
    if not _REPOSITORY.fullmatch(request.source):
        raise Unsupported(
            f"{request.source!r} is neither a repository (org/name), nor s3://bucket/prefix, an http(s) URL, or a folder"
        )
    if not is_pinned(request):
        raise Unsupported(
            f"{request.revision!r} is not a commit (40 hex digits); --allow-mutable-revision takes the commit that it names now"
        )
    from encoder_plugins.prep.sources.huggingface import HubSource

    return HubSource(request.source, request.revision, endpoint=request.endpoint, token=request.token, policy=policy)


def is_pinned(request: Request) -> bool:
    """Return whether a request may be answered with what its revision names at the moment."""
    return request.allow_mutable_revision or request.revision is None or bool(_COMMIT.fullmatch(request.revision))


def further(request: Request, auxiliary: Auxiliary, staging: Staging) -> tuple[str, Source]:
    """Name an auxiliary repository, and find where it comes from: the same hub, or the one that is taken where none is named.

    Raises:
        Unsupported: It is not pinned.
    """
    if auxiliary.revision is None and not auxiliary.source.startswith("/"):
        raise Unsupported(
            f"the auxiliary repository {auxiliary.source} is not pinned; write {auxiliary.source}@<commit>"
        )
    if auxiliary.source.startswith(("s3://", "https://", "http://")):
        raise Unsupported(f"the auxiliary repository {auxiliary.source} must be on a hub, or a folder")
    wanted = replace(
        request,
        source=auxiliary.source,
        revision=auxiliary.revision,
        endpoint=_hub_endpoint(request),
        allow_mutable_revision=False,
    )
    if not is_pinned(wanted):
        raise Unsupported(
            f"the auxiliary repository {auxiliary.source} is not pinned: {auxiliary.revision!r} is not a commit"
        )
    return auxiliary.source, of(wanted, staging)


def of_file(request: Request, place: str, sha256: str, staging: Staging, *, most_bytes: int) -> FileSource:
    """Return the source of one file, with the hub, or the object store, of the checkpoint, where the file is of such a one.

    Args:
        request: What is prepared.
        place: `hf://[datasets/]org/name@commit/path`, `s3://bucket/key`, or an http(s) URL.
        sha256: The checksum that the file must have.
        staging: The preparation's folders.
        most_bytes: The limit for a file whose source does not state its length.

    Raises:
        PrepareError: It is none of them, or no credentials for it are found.
    """
    # imported here: an artifact without such a file needs no client
    policy = RetryPolicy(stall_seconds=request.stall_seconds)
    if place.startswith("s3://"):
        from encoder_plugins.prep.sources.s3 import ObjectStoreSource

        return ObjectStoreSource(
            place,
            # the endpoint of a hub is not that of a store
            endpoint=request.endpoint if request.source.startswith("s3://") else None,
            region=request.region,
            credentials=request.credentials,
            policy=policy,
            ambient=request.ambient_credentials,
            # a store always states the length, which is the limit of a download
            one_object=True,
        )
    if place.startswith("hf://"):
        from encoder_plugins.prep.sources.huggingface import HubFile, HubSource

        found = _HUB_FILE.fullmatch(place)
        if found is None or not is_inside(found["path"]):
            raise Unsupported(
                f"{place!r} names no file of a commit; write hf://datasets/org/name@commit/path, or hf://org/name@commit/path"
                " for a repository of a model"
            )
        return HubSource(
            found["repository"],
            found["commit"],
            endpoint=_hub_endpoint(request),
            token=request.token,
            policy=policy,
            only=HubFile("dataset" if found["datasets"] else "model", found["path"]),
            most_bytes=most_bytes,
        )
    from encoder_plugins.prep.sources.http import WebSource

    return WebSource(place, sha256, staging=staging, policy=policy, most_bytes=most_bytes)


def _hub_endpoint(request: Request) -> str | None:
    """Return the hub of a checkpoint, None where it is from none: the endpoint of a store is not that of a hub."""
    return None if "://" in request.source else request.endpoint
