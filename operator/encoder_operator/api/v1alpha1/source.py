"""Source, storage and preparation of a checkpoint."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import (
    Address,
    ApiType,
    Commit,
    Environment,
    Key,
    Name,
    NamedReference,
    Parameters,
    Quantity,
    Repository,
    Resources,
    Rule,
    SecretKey,
    exactly_one,
    keyed,
)
from encoder_operator.api.v1alpha1.scheduling import NodeSelector, Tolerations


class CaBundle(ApiType):
    """A key of a ConfigMap in the same namespace that contains certificates."""

    name: Name
    """Name of the ConfigMap."""
    key: Key = "ca.crt"
    """Key of the ConfigMap (PEM format)."""


class HuggingFace(ApiType):
    """A repository on the Hugging Face Hub, or on a mirror with the same API."""

    RULES = (
        Rule(
            "self.allowMutableRevision || self.revision.matches('^[0-9a-f]{40}$')",
            "must be a commit of 40 hexadecimal digits, because a branch or tag may change while the model is served"
            " (allowMutableRevision: true accepts a branch or tag, resolves it once, and records the commit)",
            lambda part: part.allow_mutable_revision or bool(re.fullmatch("[0-9a-f]{40}", part.revision)),
        ),
    )

    repo: Repository
    """Owner and name of the repository, for instance `sentence-transformers/all-MiniLM-L6-v2`."""
    revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$", max_length=200)]
    """The commit, 40 hexadecimal digits; with allowMutableRevision also a branch or tag."""
    allow_mutable_revision: bool = False
    """Accept a branch or tag. It is resolved once, and the commit is recorded in status.artifact.resolvedRevision.
    Later commits are not picked up until the annotation encoders.dev/retry has a new value."""
    endpoint: Address | None = None
    """URL of a mirror. Not part of the artifact's identity."""
    token_secret_ref: SecretKey | None = None
    """Access token. Mounted in the prep Job only. Not part of the artifact's identity."""
    ca_config_map_ref: CaBundle | None = None
    """CA certificates for a mirror or proxy that uses a private certificate authority."""


class S3(ApiType):
    """A prefix in an S3 bucket, or in a compatible object store."""

    uri: Annotated[
        str, StringConstraints(pattern=r"^s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9](/[^\s?#]*)?$", max_length=1000)
    ]
    """Bucket and prefix, for instance `s3://models/search/v3`. They are read once, and again if the annotation
    encoders.dev/retry has a new value. The digest of the content is the artifact's revision."""
    endpoint: Address | None = None
    """URL of the object store; AWS by default."""
    region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][-a-z0-9]*$", max_length=64)] | None = None
    """Region to sign requests for; the prep Job's default if absent."""
    credentials_secret_ref: NamedReference | None = None
    """Secret with the keys AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and optionally AWS_SESSION_TOKEN. Mounted in the
    prep Job only. Without it, requests are signed with the workload identity of prepare.serviceAccountName, or not at
    all."""
    ca_config_map_ref: CaBundle | None = None
    """CA certificates for an object store that uses a private certificate authority."""


class Http(ApiType):
    """A checkpoint at a URL."""

    url: Address
    """URL of a tar archive of the checkpoint's folder, or of a checksum list in the format of sha256sum."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Checksum of the archive or of the checksum list. It is the artifact's revision."""
    ca_config_map_ref: CaBundle | None = None
    """CA certificates for a server that uses a private certificate authority."""


class ClaimSource(ApiType):
    """A folder on an existing volume."""

    RULES = (
        Rule(
            "!has(self.path) || (!self.path.startsWith('/') && !self.path.contains('..'))",
            "source.pvc.path must be relative and must not contain '..'",
            lambda part: not part.path.startswith("/") and ".." not in part.path,
        ),
    )

    claim_name: Name
    """Name of the PersistentVolumeClaim. It is mounted read-only and must be readable by the prep Job's user (10001, or the one that the platform assigns). The folder is read
    once, and again if the annotation encoders.dev/retry has a new value."""
    path: Annotated[str, StringConstraints(max_length=500)] = ""
    """The checkpoint's folder relative to the root of the volume; empty for the root."""


class Auxiliary(ApiType):
    """An additional repository on the same hub."""

    repo: Repository
    """Owner and name of the repository, for instance `microsoft/deberta-v3-small`."""
    revision: Commit
    """The commit, 40 hexadecimal digits."""


class Source(ApiType):
    """Source of the checkpoint. Set exactly one of `huggingFace`, `s3`, `http` and `pvc`."""

    RULES = (
        Rule(
            "[has(self.huggingFace), has(self.s3), has(self.http), has(self.pvc)].filter(x, x).size() == 1",
            "source must set exactly one of huggingFace, s3, http and pvc",
            lambda part: exactly_one(part, "hugging_face", "s3", "http", "pvc"),
        ),
    )

    hugging_face: HuggingFace | None = None
    """Download from the Hugging Face Hub."""
    s3: S3 | None = None
    """Download from an S3 bucket."""
    http: Http | None = None
    """Download from a web server."""
    pvc: ClaimSource | None = None
    """Copy from a volume."""
    auxiliary: Annotated[list[Auxiliary], Field(max_length=48, json_schema_extra=keyed("repo"))] = Field(
        default_factory=list
    )
    """Additional repositories that the checkpoint needs, for instance for its encoder's configuration and tokenizer,
    without weights, or for the tokenizers of languages."""


class NewClaim(ApiType):
    """The PersistentVolumeClaim `<model>-artifacts` that the operator creates."""

    RULES = (
        Rule(
            "has(self.storageClassName) == has(oldSelf.storageClassName) && self.accessModes == oldSelf.accessModes"
            " && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "only the size of storage.create can be changed: storage class and access mode of a volume are immutable",
            None,
        ),
    )

    size: Quantity
    """Size of the volume, for instance `10Gi`. It can be increased if the StorageClass allows volume expansion. It is never decreased."""
    storage_class_name: Name | None = None
    """StorageClass; the operator's or the cluster's default if absent."""
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteOnce"], min_length=1, max_length=1
    )
    """With ReadWriteOnce all pods of the model run on one node; with ReadWriteMany they can be spread."""


class Storage(ApiType):
    """Storage of the artifacts. Set exactly one of `claimName` and `create`."""

    RULES = (
        Rule(
            "[has(self.claimName), has(self.create)].filter(x, x).size() == 1",
            "storage must set exactly one of claimName and create",
            lambda part: exactly_one(part, "claim_name", "create"),
        ),
        Rule(
            "self.policy != 'Delete' || has(self.create)",
            "storage.policy Delete needs storage.create: the operator never deletes a PersistentVolumeClaim that it did not create",
            lambda part: part.policy != "Delete" or part.create is not None,
        ),
    )

    claim_name: Name | None = None
    """Name of an existing PersistentVolumeClaim. Several models may share it."""
    create: NewClaim | None = None
    """Create a PersistentVolumeClaim for this model."""
    policy: Literal["Retain", "Delete"] = "Retain"
    """Whether a created PersistentVolumeClaim is deleted together with the EncoderModel."""


class Prepare(ApiType):
    """The prep Job, which downloads, checks and converts the checkpoint and records reference outputs with the original library."""

    allow_pickle: bool = False
    """Allow checkpoints in PyTorch's pickle format, which are loaded with weights_only."""
    trust_remote_code: bool | None = None
    """Run Python code from the checkpoint's repository while the original library records the reference outputs; as
    spec.serving.trustRemoteCode if absent. Requires the operator's setting allowTrustRemoteCode."""
    parameters: Parameters = Field(default_factory=dict)
    """Parameters of the plugin, for instance `wordsSplitter: whitespace`; the plugin's page lists them. Part of the
    artifact's identity."""
    resources: Resources | None = None
    """Resources of the prep Job; the operator's default if absent."""
    env: Environment = Field(default_factory=list)
    """Additional environment variables, for instance HTTPS_PROXY."""
    service_account_name: Name | None = None
    """Service account of the prep Job, for access to an object store by workload identity instead of a Secret. The
    administrator must allow it."""
    node_selector: NodeSelector = Field(default_factory=dict)
    """Node selector of the prep Job, instead of the serving pods' one. With a ReadWriteOnce volume both apply."""
    tolerations: Tolerations = Field(default_factory=list)
    """Tolerations of the prep Job in addition to those of the serving pods."""
    active_deadline_seconds: Annotated[int, Field(ge=60, le=604800)] = 7200
    """Deadline of the whole preparation, including retries, in seconds."""
    backoff_limit: Annotated[int, Field(ge=0, le=20)] = 4
    """Maximum number of retries after a temporary failure such as a network error."""
