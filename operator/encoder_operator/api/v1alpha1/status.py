"""The status of an EncoderModel."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import ApiType, Parameters, keyed

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Progress(ApiType):
    """Progress of the preparation, updated at most every 10 seconds."""

    phase: str | None = None
    """Current step: waiting, listing, download, unpack, convert, check, reference, seal, publish or clean."""
    bytes: int | None = None
    """Bytes completed."""
    total: int | None = None
    """Total bytes."""
    bytes_per_second: int | None = None
    """Current rate in bytes per second."""
    at: Time | None = None
    """Time of the report."""


class LabelSet(ApiType):
    """A label set of an artifact."""

    name: str
    """What requests call it."""
    sha256: str
    """Checksum of the content that it was prepared from."""


class Artifact(ApiType):
    """The prepared checkpoint."""

    key: str | None = None
    """Hash of the artifact's inputs, and name of its folder on the volume."""
    resolved_revision: str | None = None
    """Revision of the source: a commit, or a digest of the content."""
    parameters: Parameters | None = None
    """The value of spec.prepare.parameters that it was prepared with."""
    label_sets: Annotated[list[LabelSet], Field(json_schema_extra=keyed("name"))] | None = None
    """The label sets that it was prepared with."""
    digest: str | None = None
    """Digest of the artifact's manifest, which lists the digest of every file."""
    bytes: int | None = None
    """Total size of the files."""
    progress: Progress | None = None
    """Progress of the preparation while it runs."""


class Engine(ApiType):
    """The engine of a revision."""

    image: str | None = None
    """Image in the pod template."""
    image_id: Annotated[str | None, Field(alias="imageID")] = None
    """Image with digest, as the kubelet reports it."""
    accelerator: str | None = None
    """Accelerator."""
    dtype: str | None = None
    """Data type of weights and activations."""
    plugin_version: str | None = None
    """Version of the plugins, as the engine reported it during the parity check."""
    vllm_version: str | None = None
    """Version of vLLM, as the engine reported it during the parity check."""


class Metric(ApiType):
    """A metric of a parity check."""

    name: str
    """Name of the metric."""
    value: str
    """Measured value, as a decimal string."""
    threshold: str | None = None
    """Threshold, as a decimal string."""


class ParityStatus(ApiType):
    """A finished parity check."""

    result: Literal["Passed", "Failed"]
    """Result of the parity check."""
    revision: str
    """Revision that was verified."""
    accelerator: str
    """Accelerator product that it was verified on."""
    metrics: Annotated[list[Metric], Field(max_length=16)] = Field(default_factory=list)
    """Measured metrics."""
    cases: int | None = None
    """Number of inputs that were compared."""
    ran_at: Time | None = None
    """Time at which it finished."""


class Condition(ApiType):
    """A condition of the EncoderModel."""

    type: Annotated[str, StringConstraints(max_length=316)]
    """Type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition is True, False or Unknown."""
    reason: Annotated[str, StringConstraints(max_length=1024)]
    """Reason in CamelCase; docs/status.md lists all reasons and remedies."""
    message: Annotated[str, StringConstraints(max_length=32768)] = ""
    """Message with details."""
    observed_generation: int | None = None
    """The metadata.generation that the condition is based on."""
    last_transition_time: Time
    """Time of the last change of the condition's status."""


class Status(ApiType):
    """Observed state of an EncoderModel. It can be recomputed from the cluster at any time."""

    observed_generation: int | None = None
    """The metadata.generation that the status is based on."""
    phase: str | None = None
    """Summary of the conditions: Pending, Preparing, Verifying, RollingOut, Serving, Degraded, Failed or Suspended."""
    endpoint: str | None = None
    """URL to send requests to."""
    ready: str | None = None
    """Ready and desired pods, for instance `1/2`."""
    replicas: int | None = None
    """Number of pods."""
    ready_replicas: int | None = None
    """Number of pods that receive traffic."""
    desired_replicas: int | None = None
    """Number of pods that the spec requests; 0 while it is suspended."""
    selector: str | None = None
    """Label selector of the pods, for autoscalers."""
    license: str | None = None
    """What the plugin declares about the license of its checkpoints, for instance that it forbids commercial use; absent
    if it declares nothing. A checkpoint of your own may have another license."""
    artifact: Artifact | None = None
    """The artifact of the target revision."""
    prep_job: str | None = None
    """Name of the prep Job, while it exists."""
    active_revision: str | None = None
    """The revision that receives traffic."""
    candidate_revision: str | None = None
    """The revision that is being verified or rolled out, if it is not the active one."""
    engine: Engine | None = None
    """Engine of the active revision, or of the candidate if there is no active one."""
    parity_job: str | None = None
    """Name of the newest parity Job, while it exists."""
    parity: ParityStatus | None = None
    """Parity check of the active revision."""
    candidate_parity: ParityStatus | None = None
    """Parity check of the candidate revision."""
    conditions: Annotated[
        list[Condition],
        Field(max_length=16, json_schema_extra=keyed("type")),
    ] = Field(default_factory=list)
    """Conditions by type."""
