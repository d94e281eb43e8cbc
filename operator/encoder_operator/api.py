"""The EncoderModel resource: what a person writes, and what the operator answers. The contract; no logic.

Docstrings below fields become the descriptions of the CustomResourceDefinition (``crd.py``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from encoder_operator.arguments import cel_pattern

Accelerator = Literal["cpu", "nvidia"]
Mode = Literal["Enforce", "Warn", "Disabled"]

_QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
Quantity = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[str, StringConstraints(pattern=_QUANTITY, max_length=64)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
Decimal = Annotated[str, StringConstraints(pattern=r"^-?[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?$", max_length=32)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
LabelKey = Annotated[str, StringConstraints(max_length=316)]
Repository = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*/[-A-Za-z0-9_.]+$", max_length=200)]


def rule(expression: str, message: str) -> dict[str, str]:
    """Return a CEL rule with the sentence that a person reads when it does not hold."""
    return {"rule": expression, "message": message}


def rules(*found: dict[str, str]) -> dict[str, Any]:
    """Return the schema extension that holds CEL rules."""
    return {"x-kubernetes-validations": list(found)}


Commit = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f]{40}$"),
    Field(
        json_schema_extra=rules(
            rule(
                "self.matches('^[0-9a-f]{40}$')",
                "must be a commit of 40 hexadecimal digits: a branch or tag may change under a served model",
            )
        )
    ),
]


class Part(BaseModel):
    """A part of the resource: camelCase outside, strict, closed, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )


class SecretKey(Part):
    """A key of a Secret in the same namespace."""

    name: Name
    """Name of the Secret."""
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)] = "token"
    """Key in it."""


class ConfigMapKey(Part):
    """A key of a ConfigMap in the same namespace."""

    name: Name
    """Name of the ConfigMap."""
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)] = "inputs.json"
    """Key in it."""


class HuggingFace(Part):
    """A repository on the Hugging Face hub, or on a mirror that speaks its protocol."""

    repo: Repository
    """Owner and name, as in `sentence-transformers/all-MiniLM-L6-v2`."""
    revision: Commit
    """The commit: 40 hexadecimal digits."""
    endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=500)] | None = None
    """Address of a mirror. Not part of the artifact's identity."""
    token_secret_ref: SecretKey | None = None
    """Access token. Only the prep Job sees it. Not part of the artifact's identity."""


class ClaimSource(Part):
    """A folder on a volume that exists already."""

    claim_name: Name
    """The PersistentVolumeClaim; it is mounted read-only."""
    path: Annotated[
        str,
        StringConstraints(max_length=500),
        Field(
            json_schema_extra=rules(
                rule("!self.startsWith('/') && !self.contains('..')", "must be relative, and must not contain '..'")
            )
        ),
    ] = ""
    """The checkpoint's folder, relative to the volume's root; empty for the root itself."""


class Auxiliary(Part):
    """A further repository of the same hub that a checkpoint needs."""

    repo: Repository
    """Owner and name, as in `microsoft/deberta-v3-small`."""
    revision: Commit
    """The commit: 40 hexadecimal digits."""


class Source(Part):
    """Where the checkpoint comes from: exactly one of `huggingFace` and `pvc`."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "[has(self.huggingFace), has(self.pvc)].filter(x, x).size() == 1",
                "source must name exactly one of huggingFace and pvc",
            )
        )
    )

    hugging_face: HuggingFace | None = None
    """Download from the Hugging Face hub."""
    pvc: ClaimSource | None = None
    """Copy from a volume."""
    auxiliary: Annotated[
        list[Auxiliary],
        Field(
            max_length=4, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["repo"]}
        ),
    ] = Field(default_factory=list)
    """Further repositories that the checkpoint needs, for instance its encoder's configuration and tokenizer. Their weights are not taken."""


class NewClaim(Part):
    """The PersistentVolumeClaim `<model>-artifacts`, made by the operator."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self == oldSelf", "storage.create can't be changed: a volume keeps the shape that it was made with")
        )
    )

    size: Quantity
    """Size of the volume, as in `10Gi`."""
    storage_class_name: Name | None = None
    """StorageClass; the cluster's default if absent."""
    access_modes: Annotated[list[Literal["ReadWriteOnce", "ReadWriteMany"]], Field(min_length=1, max_length=1)] = [
        "ReadWriteOnce"
    ]
    """ReadWriteOnce keeps every pod of the model on one node; ReadWriteMany lets them spread."""


class Storage(Part):
    """Where artifacts are kept: exactly one of `claimName` and `create`."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "[has(self.claimName), has(self.create)].filter(x, x).size() == 1",
                "storage must name exactly one of claimName and create",
            ),
            rule(
                "self.policy != 'Delete' || has(self.create)",
                "storage.policy Delete is only for a claim that the operator creates: it never deletes one of yours",
            ),
        )
    )

    claim_name: Name | None = None
    """A PersistentVolumeClaim that exists; several models may share it."""
    create: NewClaim | None = None
    """Let the operator make a claim of the model's own."""
    policy: Literal["Retain", "Delete"] = "Retain"
    """What becomes of a created claim when the EncoderModel is deleted."""


class Resources(Part):
    """Compute resources, as in a container."""

    requests: dict[LabelKey, Quantity] = Field(default_factory=dict)
    """What the scheduler sets aside."""
    limits: dict[LabelKey, Quantity] = Field(default_factory=dict)
    """What the container may use at most."""


class EnvVar(Part):
    """An environment variable with a plain value."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
    """Its name."""
    value: Annotated[str, StringConstraints(max_length=4096)] = ""
    """Its value."""


class Toleration(Part):
    """A taint that the pods may run on."""

    key: LabelKey | None = None
    """Taint key; absent with operator Exists matches every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How key and value are compared."""
    value: str | None = None
    """Taint value, for Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; absent for any."""
    toleration_seconds: int | None = None
    """How long a NoExecute taint is put up with."""


Environment = Annotated[
    list[EnvVar],
    Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
]


class Prepare(Part):
    """The Job that downloads, checks and converts the checkpoint, and records the original library's answers."""

    allow_pickle: bool = False
    """Allow checkpoints in PyTorch's pickle format (read with weights_only). safetensors need no permission."""
    resources: Resources | None = None
    """Resources of the Job's pod; the operator's default if absent."""
    env: Environment = Field(default_factory=list)
    """Extra environment variables, for instance HTTPS_PROXY."""
    active_deadline_seconds: Annotated[int, Field(ge=60, le=604800)] = 7200
    """The whole preparation, all tries together, may take this long."""
    backoff_limit: Annotated[int, Field(ge=0, le=20)] = 4
    """How often a failure that may pass by itself (network, server error) is tried again."""


class Inputs(Part):
    """Cases of your own for the comparison."""

    config_map_ref: ConfigMapKey
    """A JSON list of cases, as the plugin's page describes them. The prep Job records the original library's answers to them; changed
    ones make a new artifact."""


class Parity(Part):
    """How the served model is compared with the original library before it gets traffic."""

    mode: Mode = "Enforce"
    """Enforce: no traffic without proof. Warn: traffic once it was compared, whatever came out, and a condition that says so. Disabled: no comparison."""
    thresholds: Annotated[dict[str, Decimal], Field(max_length=16)] = Field(default_factory=dict)
    """Override the plugin's own thresholds, by metric; decimals as strings."""
    inputs: Inputs | None = None
    """Compare on these too, beside the plugin's own cases."""
    timeout_seconds: Annotated[int, Field(ge=10, le=7200)] = 300
    """One comparison may take this long."""


class Serving(Part):
    """The pods that answer."""

    accelerator: Accelerator
    """What the engine runs on."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of pods. `kubectl scale` and autoscalers write it; it is not part of the revision."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format; the plugin's default for the accelerator if absent."""
    max_model_len: Annotated[int, Field(ge=1, le=1048576)] | None = None
    """Longest input in tokens; the checkpoint's own limit if absent."""
    max_in_flight: Annotated[int, Field(ge=1, le=100000)] | None = None
    """Requests that a pod works on at once; more are answered 503 with Retry-After."""
    resources: Resources | None = None
    """Resources of each pod; the operator's default if absent. nvidia pods get one GPU unless a limit says otherwise."""
    args: Annotated[
        list[Annotated[str, StringConstraints(max_length=2048)]],
        Field(
            max_length=64,
            json_schema_extra=rules(
                rule(
                    f"self.all(a, !a.matches('{cel_pattern()}'))",
                    "serving.args holds an argument that is not yours to set: the operator sets it, a field of the spec"
                    " does, or it loads foreign code (see docs/encodermodel.md)",
                )
            ),
        ),
    ] = Field(default_factory=list)
    """Further vLLM arguments. Those that the operator sets, or that would load foreign code, are refused."""
    env: Environment = Field(default_factory=list)
    """Extra environment variables."""
    node_selector: Annotated[dict[LabelKey, str], Field(max_length=32)] = Field(default_factory=dict)
    """Node labels that all pods of the model need; the prep Job's too."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = Field(default_factory=list)
    """Taints that all pods of the model tolerate; the prep Job's too."""


class Spec(Part):
    """What a person asks for."""

    plugin: Annotated[
        str,
        StringConstraints(max_length=63),
        Field(
            json_schema_extra=rules(
                rule("self == oldSelf", "plugin can't be changed: make another EncoderModel for another plugin")
            )
        ),
    ]
    """The encoder family. Immutable."""
    source: Source
    """Where the checkpoint comes from."""
    storage: Storage
    """Where artifacts are kept."""
    prepare: Prepare = Prepare()
    """The preparation Job."""
    parity: Parity = Parity()
    """The comparison with the original library."""
    serving: Serving
    """The pods that answer."""
    suspend: bool = False
    """Take all pods away; the artifact and what was proved are kept."""


class Artifact(Part):
    """The prepared checkpoint."""

    key: str | None = None
    """What it was asked to be made from, as a digest; its folder on the volume."""
    resolved_revision: str | None = None
    """The source's revision."""
    digest: str | None = None
    """Digest of its manifest, which lists every file's digest."""
    bytes: int | None = None
    """Size of all files."""


class Metric(Part):
    """One number of a comparison."""

    name: str
    """What was measured."""
    value: str
    """What came out, as a decimal."""
    threshold: str | None = None
    """What was asked for."""


class ParityStatus(Part):
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
    ran_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it finished."""


class Condition(Part):
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
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """Since when the status has been what it is."""


class Status(Part):
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
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = Field(default_factory=list)
    """Statements by type."""
