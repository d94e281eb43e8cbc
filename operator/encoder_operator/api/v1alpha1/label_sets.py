"""Label sets that requests name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import (
    Address,
    ApiType,
    Commit,
    Key,
    Name,
    Repository,
    Rule,
    exactly_one,
    keyed,
)
from encoder_plugins.artifact import label_sets


class LabelSetKey(ApiType):
    """A key of a ConfigMap in the same namespace that contains a label set."""

    name: Name
    """Name of the ConfigMap."""
    key: Key = "labels.jsonl"
    """Key of the ConfigMap."""


class LabelSetHubFile(ApiType):
    """A file of a repository on a hub."""

    RULES = (
        Rule(
            "!self.path.contains('..')",
            "labelSets.huggingFace.path must not contain '..'",
            lambda part: ".." not in part.path,
        ),
    )

    type: Literal["dataset", "model"] = "dataset"
    """Type of the repository. Datasets and models are separate repositories, which may have the same name."""
    repo: Repository
    """Owner and name of the repository."""
    revision: Commit
    """The commit, 40 hexadecimal digits."""
    path: Annotated[str, StringConstraints(pattern=r"^[^/\s]([ \S]*[^/\s])?$", max_length=500)]
    """Path of the file in the repository, for instance `data/labels.jsonl`."""


class LabelSetObject(ApiType):
    """An object in an S3 bucket, or in a compatible object store."""

    uri: Annotated[
        str, StringConstraints(pattern=r"^s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]/[^\s?#]*[^\s?#/]$", max_length=1000)
    ]
    """Bucket and key of the object, for instance `s3://catalogues/entities/v3.jsonl`."""


class LabelSet(ApiType):
    """Labels that requests name together. Set exactly one of `configMapRef`, `url`, `huggingFace` and `s3`."""

    RULES = (
        Rule(
            "[has(self.configMapRef), has(self.url), has(self.huggingFace), has(self.s3)].filter(x, x).size() == 1",
            "a label set must set exactly one of configMapRef, url, huggingFace and s3",
            lambda part: exactly_one(part, "config_map_ref", "url", "hugging_face", "s3"),
        ),
    )

    name: Annotated[str, StringConstraints(pattern=f"^{label_sets.NAME}$", max_length=63)]
    """What requests call the set in `label_set`."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Checksum of the content. A set is part of the artifact: a change creates a new artifact and a new revision."""
    config_map_ref: LabelSetKey | None = None
    """A ConfigMap with the set, which can have 1 MiB. It is mounted in the prep Job only."""
    url: Address | None = None
    """URL of the set. It is fetched by the prep Job with the CA certificates of the source. Not part of the artifact's identity."""
    hugging_face: LabelSetHubFile | None = None
    """A file on the hub of source.huggingFace, requested with its endpoint, token and CA certificates. If the source is not a
    hub, the file is requested without a token from the hub that HF_ENDPOINT in prepare.env or the operator's settings name, or
    from the public one. Not part of the artifact's identity."""
    s3: LabelSetObject | None = None
    """An object in the object store of source.s3, requested with its endpoint, region, credentials and CA certificates. If the source
    is not S3, the object is requested from AWS or the endpoint AWS_ENDPOINT_URL_S3 in prepare.env, with the workload identity of
    prepare.serviceAccountName, or without credentials. Not part of the artifact's identity."""


LabelSets = Annotated[list[LabelSet], Field(max_length=label_sets.MOST_SETS, json_schema_extra=keyed("name"))]
