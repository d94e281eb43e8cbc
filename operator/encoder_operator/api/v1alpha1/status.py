"""What the operator answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import ApiType, keyed

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Progress(ApiType):
    """How far a preparation is, by its own words; at most one in ten seconds."""

    phase: str | None = None
    """What it does: Downloading, Converting, Recording."""
    bytes: int | None = None
    """Bytes done."""
    total: int | None = None
    """Bytes to do."""
    bytes_per_second: int | None = None
    """How fast, of late."""
    at: Time | None = None
    """When it said so."""


class Artifact(ApiType):
    """The prepared checkpoint."""

    key: str | None = None
    """What it was asked to be made from, as a digest; its folder on the volume."""
    resolved_revision: str | None = None
    """The source's revision: the commit, or a digest of the content."""
    digest: str | None = None
    """Digest of its manifest, which lists every file's digest."""
    bytes: int | None = None
    """Size of all files."""
    progress: Progress | None = None
    """How far the preparation is, while it runs."""


class Metric(ApiType):
    """One number of a comparison."""

    name: str
    """What was measured."""
    value: str
    """What came out, as a decimal."""
    threshold: str | None = None
    """What was asked for."""


class ParityStatus(ApiType):
    """A finished comparison."""

    result: Literal["Passed", "Failed"]
    """Its outcome."""
    revision: str
    """Revision that was compared."""
    accelerator: str
    """Accelerator product it was compared on."""
    metrics: Annotated[list[Metric], Field(max_length=16)] = Field(default_factory=list)
    """The numbers."""
    cases: int | None = None
    """How many inputs were compared."""
    ran_at: Time | None = None
    """When it finished."""


class Condition(ApiType):
    """One statement about the model."""

    type: Annotated[str, StringConstraints(max_length=316)]
    """What it is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, StringConstraints(max_length=1024)]
    """One word, listed in docs/status.md with what to do about it."""
    message: Annotated[str, StringConstraints(max_length=32768)] = ""
    """A sentence for people."""
    observed_generation: int | None = None
    """The metadata.generation that it speaks of."""
    last_transition_time: Time
    """Since when the status has been what it is."""


class Status(ApiType):
    """What the operator answers. Everything in it can be worked out again from the cluster."""

    observed_generation: int | None = None
    """The metadata.generation that the rest speaks of."""
    phase: str | None = None
    """One word for people: Pending, Preparing, Verifying, RollingOut, Serving, Degraded, Failed or Suspended."""
    endpoint: str | None = None
    """Where to send requests."""
    replicas: int | None = None
    """Pods that exist."""
    ready_replicas: int | None = None
    """Pods that get traffic."""
    selector: str | None = None
    """Labels of the pods, for autoscalers."""
    artifact: Artifact | None = None
    """The prepared checkpoint of the wanted revision."""
    active_revision: str | None = None
    """The revision that answers requests."""
    candidate_revision: str | None = None
    """The wanted revision, while it is not the active one."""
    parity: ParityStatus | None = None
    """Proof of the active revision."""
    candidate_parity: ParityStatus | None = None
    """Result for the candidate revision."""
    conditions: Annotated[
        list[Condition],
        Field(max_length=16, json_schema_extra=keyed("type")),
    ] = Field(default_factory=list)
    """Statements by type."""
