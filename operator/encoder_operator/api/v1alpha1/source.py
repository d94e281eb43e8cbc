"""Where a checkpoint comes from, where its artifact is kept, and how the one becomes the other."""

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
    """A key of a ConfigMap in the same namespace that holds certificates."""

    name: Name
    """Name of the ConfigMap."""
    key: Key = "ca.crt"
    """Key in it: certificates in PEM format."""


class HuggingFace(ApiType):
    """A repository on the Hugging Face hub, or on a mirror that speaks its protocol."""

    RULES = (
        Rule(
            "self.allowMutableRevision || self.revision.matches('^[0-9a-f]{40}$')",
            "must be a commit of 40 hexadecimal digits: a branch or tag may change under a served model"
            " (allowMutableRevision: true takes one, looks it up once, and records the commit)",
            lambda part: part.allow_mutable_revision or bool(re.fullmatch("[0-9a-f]{40}", part.revision)),
        ),
    )

    repo: Repository
    """Owner and name, as in `sentence-transformers/all-MiniLM-L6-v2`."""
    revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$", max_length=200)]
    """The commit, 40 hexadecimal digits; with allowMutableRevision also a branch or tag."""
    allow_mutable_revision: bool = False
    """Take a branch or tag. It is looked up once, when the artifact is prepared, and the commit is in
    status.artifact.resolvedRevision; what serves does not follow the branch. A new value of the annotation encoders.dev/retry
    looks it up again."""
    endpoint: Address | None = None
    """Address of a mirror. Not part of the artifact's identity."""
    token_secret_ref: SecretKey | None = None
    """Access token. Only the prep Job sees it. Not part of the artifact's identity."""
    ca_config_map_ref: CaBundle | None = None
    """Certificates that the hub's is checked with, for a mirror or proxy with an authority of its own."""


class S3(ApiType):
    """A folder in an S3 bucket, or in a store that speaks its protocol."""

    uri: Annotated[
        str, StringConstraints(pattern=r"^s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9](/[^\s?#]*)?$", max_length=1000)
    ]
    """Bucket and prefix, as in `s3://models/search/v3`. It is read once, when the artifact is prepared; the digest of what was found is the
    artifact's revision. A new value of the annotation encoders.dev/retry reads it again."""
    endpoint: Address | None = None
    """Address of the store; Amazon's own for the region if absent."""
    region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][-a-z0-9]*$", max_length=64)] | None = None
    """Region that requests are signed for; the prep Job's default if absent."""
    credentials_secret_ref: NamedReference | None = None
    """Secret with the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN if there is one. Only the prep Job sees
    it. Without it requests are not signed."""
    ca_config_map_ref: CaBundle | None = None
    """Certificates that the store's is checked with."""


class Http(ApiType):
    """A checkpoint behind one address."""

    url: Address
    """A tar of the checkpoint's folder, or a JSON index that lists its files with their sha256."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the tar, or of the index: the artifact's revision."""
    ca_config_map_ref: CaBundle | None = None
    """Certificates that the server's is checked with."""


class ClaimSource(ApiType):
    """A folder on a volume that exists already."""

    RULES = (
        Rule(
            "!has(self.path) || (!self.path.startsWith('/') && !self.path.contains('..'))",
            "source.pvc.path must be relative, and must not contain '..'",
            lambda part: not part.path.startswith("/") and ".." not in part.path,
        ),
    )

    claim_name: Name
    """The PersistentVolumeClaim, mounted read-only: user 10001 must be able to read it. It is read once, when the artifact is
    prepared: claim and path stand for what is there. A new value of the annotation encoders.dev/retry reads it again."""
    path: Annotated[str, StringConstraints(max_length=500)] = ""
    """The checkpoint's folder, relative to the volume's root; empty for the root itself."""


class Auxiliary(ApiType):
    """A further repository of the same hub that a checkpoint needs."""

    repo: Repository
    """Owner and name, as in `microsoft/deberta-v3-small`."""
    revision: Commit
    """The commit: 40 hexadecimal digits."""


class Source(ApiType):
    """Where the checkpoint comes from: exactly one of `huggingFace`, `s3`, `http` and `pvc`."""

    RULES = (
        Rule(
            "[has(self.huggingFace), has(self.s3), has(self.http), has(self.pvc)].filter(x, x).size() == 1",
            "source must name exactly one of huggingFace, s3, http and pvc",
            lambda part: exactly_one(part, "hugging_face", "s3", "http", "pvc"),
        ),
    )

    hugging_face: HuggingFace | None = None
    """Download from the Hugging Face hub."""
    s3: S3 | None = None
    """Download from an S3 bucket."""
    http: Http | None = None
    """Download from a web server."""
    pvc: ClaimSource | None = None
    """Copy from a volume."""
    auxiliary: Annotated[list[Auxiliary], Field(max_length=4, json_schema_extra=keyed("repo"))] = Field(
        default_factory=list
    )
    """Further repositories that the checkpoint needs, for instance its encoder's configuration and tokenizer. Their weights are not taken."""


class NewClaim(ApiType):
    """The PersistentVolumeClaim `<model>-artifacts`, made by the operator."""

    RULES = (
        Rule(
            "has(self.storageClassName) == has(oldSelf.storageClassName) && self.accessModes == oldSelf.accessModes"
            " && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "of storage.create only the size can be changed: a volume keeps the class and the access mode that it was made with",
            None,
        ),
    )

    size: Quantity
    """Size of the volume, as in `10Gi`. A larger one lets the volume grow, where its StorageClass allows that; it never shrinks."""
    storage_class_name: Name | None = None
    """StorageClass; the cluster's default if absent."""
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteOnce"], min_length=1, max_length=1
    )
    """ReadWriteOnce keeps every pod of the model on one node; ReadWriteMany lets them spread."""


class Storage(ApiType):
    """Where artifacts are kept: exactly one of `claimName` and `create`."""

    RULES = (
        Rule(
            "[has(self.claimName), has(self.create)].filter(x, x).size() == 1",
            "storage must name exactly one of claimName and create",
            lambda part: exactly_one(part, "claim_name", "create"),
        ),
        Rule(
            "self.policy != 'Delete' || has(self.create)",
            "storage.policy Delete is only for a claim that the operator creates: it never deletes one of yours",
            lambda part: part.policy != "Delete" or part.create is not None,
        ),
    )

    claim_name: Name | None = None
    """A PersistentVolumeClaim that exists; several models may share it."""
    create: NewClaim | None = None
    """Let the operator make a claim of the model's own."""
    policy: Literal["Retain", "Delete"] = "Retain"
    """What becomes of a created claim when the EncoderModel is deleted."""


class Prepare(ApiType):
    """The Job that downloads, checks and converts the checkpoint, and records the original library's answers."""

    allow_pickle: bool = False
    """Allow checkpoints in PyTorch's pickle format (read with weights_only). safetensors need no permission."""
    resources: Resources | None = None
    """Resources of the Job's pod; the operator's default if absent."""
    env: Environment = Field(default_factory=list)
    """Extra environment variables, for instance HTTPS_PROXY."""
    node_selector: NodeSelector = Field(default_factory=dict)
    """Node labels that the Job's pod needs, instead of those of the serving pods; on a ReadWriteOnce volume beside them, since it must
    run where the model is served."""
    tolerations: Tolerations = Field(default_factory=list)
    """Taints that the Job's pod tolerates, beside those of the serving pods."""
    active_deadline_seconds: Annotated[int, Field(ge=60, le=604800)] = 7200
    """The whole preparation, all tries together, may take this long."""
    backoff_limit: Annotated[int, Field(ge=0, le=20)] = 4
    """How often a failure that may pass by itself (network, server error) is tried again."""
