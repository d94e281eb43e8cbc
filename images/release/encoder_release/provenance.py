"""Where an image or a chart comes from: an in-toto statement with SLSA's provenance predicate, version 1. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEDIA_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:encoder-operator:make-release:v1"
WORKSTATION = "urn:encoder-operator:workstation"
"""Builder of a release that no CI system made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The checkout that a release is made from.

    Attributes:
        commit: Its commit, 40 hex digits.
        time: The commit's time in UTC, `YYYY-MM-DDThh:mm:ssZ`.
        url: Address of the repository; empty if unknown.
        changed: Whether files differ from the commit.
        builder: URI of what runs the build.
    """

    commit: str
    time: str
    url: str = ""
    changed: bool = False
    builder: str = WORKSTATION


def statement(
    name: str, digest: str, source: Source, parameters: Mapping[str, object], started: str, finished: str
) -> dict[str, Any]:
    """Return the statement about one artifact.

    Args:
        name: The artifact's repository.
        digest: Digest of its manifest.
        source: What it is built from.
        parameters: What determined the build beside the source.
        started: When the build began, in UTC.
        finished: When it ended, in UTC.
    """
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": PREDICATE,
        "predicate": predicate(source, parameters, started, finished),
    }


def predicate(source: Source, parameters: Mapping[str, object], started: str, finished: str) -> dict[str, Any]:
    """Return the predicate alone, which is what signing tools expect."""
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {**parameters, **({"uncommittedChanges": True} if source.changed else {})},
            "resolvedDependencies": [
                {
                    "uri": f"git+{source.url or 'urn:encoder-operator'}@{source.commit}",
                    "digest": {"gitCommit": source.commit},
                }
            ],
        },
        "runDetails": {
            "builder": {"id": source.builder},
            "metadata": {"startedOn": started, "finishedOn": finished},
        },
    }
