"""The serving pods and their parity checks."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from encoder_operator.api.v1alpha1.base import (
    Accelerator,
    ApiType,
    Decimal,
    Environment,
    Key,
    LabelValue,
    Name,
    NamedReference,
    Resources,
    Rule,
    keyed,
    rule,
    rules,
)
from encoder_operator.api.v1alpha1.scheduling import (
    Affinity,
    NodeSelector,
    ResourceClaims,
    Tolerations,
    TopologySpreadConstraint,
)
from encoder_operator.naming import GPU_PRODUCT_LABEL, GPU_RESOURCE, GPU_VENDOR
from encoder_operator.validation.vllm_args import cel_pattern

Mode = Literal["Enforce", "Warn", "Disabled"]
LoadFormat = Literal["auto", "safetensors", "fastsafetensors", "runai_streamer", "tensorizer"]


class ConfigMapKey(ApiType):
    """A key of a ConfigMap in the same namespace."""

    name: Name
    """Name of the ConfigMap."""
    key: Key = "inputs.json"
    """Key of the ConfigMap."""


class Inputs(ApiType):
    """Additional inputs for the parity check."""

    config_map_ref: ConfigMapKey
    """A JSON list of inputs in the plugin's format. The prep Job records the original library's outputs for them. A
    change creates a new artifact."""


class Parity(ApiType):
    """How the served model is compared with the reference outputs before it receives traffic."""

    mode: Mode = "Enforce"
    """Enforce: pods receive traffic only after a passed parity check. Warn: pods receive traffic after the check
    whatever its result, and a condition reports a failure. Disabled: no check."""
    thresholds: Annotated[dict[str, Decimal], Field(max_length=16)] = Field(default_factory=dict)
    """Overrides of the plugin's thresholds by metric, as decimal strings. Ignored while mode is Disabled."""
    inputs: Inputs | None = None
    """Additional inputs beside the plugin's own. Their reference outputs are recorded in the artifact even while mode is Disabled."""
    timeout_seconds: Annotated[int, Field(ge=10, le=7200)] = 300
    """Timeout of one parity check in seconds. Ignored while mode is Disabled."""


_LIMIT = f"self.resources.limits['{GPU_RESOURCE}']"
# for a model on one GPU a higher limit is wasteful, but it was always allowed
_GPUS = "[1-9][0-9]*"


def _enough(resources: Resources | None, size: int) -> bool:
    requested = str((resources.limits if resources else {}).get(GPU_RESOURCE, size))
    return requested == str(size) or (size == 1 and re.fullmatch(_GPUS, requested) is not None)


MediaHost = Annotated[
    str,
    StringConstraints(
        max_length=259,
        pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?(:[1-9][0-9]{0,4})?$",
    ),
]


class Media(ApiType):
    """Images and PDFs that requests name by their address."""

    allowed_hosts: Annotated[
        list[MediaHost], Field(min_length=1, max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"})
    ]
    """Hosts from which the serving pods fetch images and PDFs by https, for instance `images.example.com` or
    `images.example.com:8443`. A host must have a public address; redirects to other hosts are not followed."""


class Serving(ApiType):
    """The serving pods."""

    RULES = (
        Rule(
            "!has(self.acceleratorProduct) || self.accelerator == 'nvidia'",
            "serving.acceleratorProduct needs accelerator nvidia, because it is the node label nvidia.com/gpu.product",
            lambda part: part.accelerator_product is None or part.accelerator == "nvidia",
        ),
        Rule(
            "!has(self.quantization) || self.accelerator == 'nvidia'",
            "serving.quantization needs accelerator nvidia, because the CPU engine does not support fp8",
            lambda part: part.quantization is None or part.accelerator == "nvidia",
        ),
        Rule(
            "self.tensorParallelSize == 1 || self.accelerator == 'nvidia'",
            "serving.tensorParallelSize above 1 needs accelerator nvidia, because it is a number of GPUs",
            lambda part: part.tensor_parallel_size == 1 or part.accelerator == "nvidia",
        ),
        Rule(
            "!has(self.enginesPerAccelerator) || self.enginesPerAccelerator == 1"
            " || (has(self.apiServerCount) && self.apiServerCount > 1)",
            "serving.enginesPerAccelerator above 1 needs apiServerCount above 1, because only then do vLLM's servers share one port",
            lambda part: (part.engines_per_accelerator or 1) == 1 or (part.api_server_count or 0) > 1,
        ),
        Rule(
            "!has(self.enginesPerAccelerator) || self.enginesPerAccelerator == 1 || self.tensorParallelSize == 1",
            "serving.enginesPerAccelerator and tensorParallelSize cannot both be above 1: the former runs several engines on one GPU, the"
            " latter one engine on several GPUs",
            lambda part: (part.engines_per_accelerator or 1) == 1 or part.tensor_parallel_size == 1,
        ),
        Rule(
            f"!has(self.acceleratorProduct) || !has(self.nodeSelector) || !('{GPU_PRODUCT_LABEL}' in self.nodeSelector)"
            f" || self.nodeSelector['{GPU_PRODUCT_LABEL}'] == self.acceleratorProduct",
            f"serving.nodeSelector sets another {GPU_PRODUCT_LABEL} than serving.acceleratorProduct: remove it from nodeSelector",
            lambda part: (
                part.accelerator_product in (None, part.node_selector.get(GPU_PRODUCT_LABEL, part.accelerator_product))
            ),
        ),
        Rule(
            "self.accelerator != 'nvidia' || !has(self.resources) || !has(self.resources.limits)"
            f" || !('{GPU_RESOURCE}' in self.resources.limits) || string({_LIMIT}) == string(self.tensorParallelSize)"
            f" || (self.tensorParallelSize == 1 && string({_LIMIT}).matches('^{_GPUS}$'))",
            f"the limit {GPU_RESOURCE} must equal tensorParallelSize: remove the limit to use that value",
            lambda part: part.accelerator != "nvidia" or _enough(part.resources, part.tensor_parallel_size),
        ),
        Rule(
            "!has(self.resourceClaims) || self.resourceClaims.size() == 0 || !has(self.resources) || !has(self.resources.limits)"
            f" || !self.resources.limits.exists(name, name.startsWith('{GPU_VENDOR}'))",
            "serving.resourceClaims and a limit of nvidia.com both request GPUs: remove one of them",
            lambda part: (
                not (
                    part.resource_claims
                    and part.resources
                    and any(n.startswith(GPU_VENDOR) for n in part.resources.limits)
                )
            ),
        ),
        Rule(
            "!has(self.maxInFlight) || !has(self.limits) || !('in_flight' in self.limits)",
            "serving.maxInFlight and serving.limits.in_flight set the same limit: remove one of them",
            lambda part: part.max_in_flight is None or "in_flight" not in part.limits,
        ),
        Rule(
            "self.loadFormat != 'tensorizer'",
            "serving.loadFormat tensorizer is not supported, because artifacts contain only safetensors",
            None,
        ),
        Rule(
            "self.loadFormat != 'fastsafetensors' || self.accelerator == 'nvidia'",
            "serving.loadFormat fastsafetensors needs accelerator nvidia, because it reads into GPU memory",
            None,
        ),
    )

    accelerator: Accelerator
    """Accelerator that the engine runs on."""
    accelerator_product: Annotated[LabelValue, Field(min_length=1)] | None = None
    """GPU product to run on, as in the node label nvidia.com/gpu.product, for instance `NVIDIA-L4`. One parity check
    covers all pods on the same product."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of serving pods. `kubectl scale` and autoscalers write this field. It is not part of the revision."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of weights and activations; the plugin's default for the accelerator if absent."""
    max_model_len: Annotated[int, Field(ge=1, le=1048576)] | None = None
    """Maximum input length in tokens; the checkpoint's limit by default."""
    load_format: LoadFormat = "auto"
    """vLLM's weight loader. fastsafetensors reads into GPU memory, runai_streamer uses many threads; both are in the
    engine image for nvidia, and on a CPU runai_streamer needs spec.image. tensorizer is rejected, because artifacts
    contain only safetensors."""
    quantization: Literal["fp8"] | None = None
    """Quantize weights and activations to 8 bits when the engine starts; nvidia only. The parity check compares such a
    revision by bounds of its own, which each plugin's page lists as fp8: they are wider than those of the dtype."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of GPUs that hold one copy of the model. Each pod requests this many."""
    api_server_count: Annotated[int, Field(ge=1, le=64)] | None = None
    """Number of API server processes per engine; derived from the number of cores by default."""
    engines_per_accelerator: Annotated[int, Field(ge=1, le=8)] | None = None
    """Number of engines per GPU behind the pod's port; chosen by the entry point by default. The pod is ready when all engines are."""
    max_in_flight: Annotated[int, Field(ge=1, le=100000)] | None = None
    """Maximum number of concurrent requests per pod; 128 if absent. Further requests are answered with status 503 and
    Retry-After."""
    limits: Annotated[
        dict[Annotated[str, StringConstraints(max_length=63)], Annotated[int, Field(ge=1, le=2147483647)]],
        Field(max_length=32),
    ] = Field(default_factory=dict)
    """Limits on requests by name, for instance `texts: 512`; the plugin's page lists them with their defaults. The parity
    check keeps them; it is Inconclusive where they let fewer than half of its cases through, or none of one kind."""
    media: Media | None = None
    """Images and PDFs that requests name by their address; without it, requests must contain them. Only for plugins that take images."""
    trust_remote_code: bool = False
    """Run Python code from the checkpoint's repository. Requires the operator's setting allowTrustRemoteCode. Pods get
    the label encoders.dev/trust-remote-code, and the condition Accepted reports it."""
    resources: Resources | None = None
    """Resources of each pod; the operator's default if absent. Pods on nvidia request tensorParallelSize GPUs unless a
    limit or a resource claim is set."""
    resource_claims: ResourceClaims = Field(default_factory=list)
    """Devices by dynamic resource allocation, instead of the limit nvidia.com/gpu."""
    args: Annotated[
        list[Annotated[str, StringConstraints(max_length=2048)]],
        Field(
            max_length=64,
            json_schema_extra=rules(
                rule(
                    f"self.all(a, !a.matches('{cel_pattern()}'))",
                    "serving.args contains an argument that is reserved for the operator, has its own field in the spec, or loads code from"
                    " elsewhere (see docs/encodermodel.md)",
                )
            ),
        ),
    ] = Field(default_factory=list)
    """Additional vLLM arguments. Arguments that are reserved for the operator or that load code from elsewhere are rejected."""
    env: Environment = Field(default_factory=list)
    """Additional environment variables."""
    node_selector: NodeSelector = Field(default_factory=dict)
    """Node selector of all pods of the model, including the prep Job's."""
    tolerations: Tolerations = Field(default_factory=list)
    """Tolerations of all pods of the model, including the prep Job's."""
    affinity: Affinity | None = None
    """Affinity rules of the serving pods, with the fields of a pod's `affinity`."""
    topology_spread_constraints: Annotated[
        list[TopologySpreadConstraint],
        Field(max_length=8, json_schema_extra=keyed("topologyKey", "whenUnsatisfiable")),
    ] = Field(default_factory=list)
    """Topology spread constraints of the serving pods."""
    priority_class_name: Name | None = None
    """PriorityClass of the serving pods."""
    runtime_class_name: Name | None = None
    """RuntimeClass of the serving pods, for instance `nvidia`."""
    image_pull_secrets: Annotated[list[NamedReference], Field(max_length=8, json_schema_extra=keyed("name"))] = Field(
        default_factory=list
    )
    """Image pull secrets of all pods of the model."""
    pod_template: Annotated[
        dict[str, Any] | None, Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    ] = None
    """Pod template override, merged as by `kubectl patch` (strategic merge). Fields that the operator depends on are
    rejected by path (see docs/encodermodel.md)."""
