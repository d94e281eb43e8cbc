"""The pods that answer, and how they are compared with the original library before they may."""

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
    """Key in it."""


class Inputs(ApiType):
    """Cases of your own for the comparison."""

    config_map_ref: ConfigMapKey
    """A JSON list of cases, as the plugin's page describes them. The prep Job records the original library's answers to them; changed
    ones make a new artifact."""


class Parity(ApiType):
    """How the served model is compared with the original library before it gets traffic."""

    mode: Mode = "Enforce"
    """Enforce: no traffic without proof. Warn: traffic once it was compared, whatever came out, and a condition that says so. Disabled: no comparison."""
    thresholds: Annotated[dict[str, Decimal], Field(max_length=16)] = Field(default_factory=dict)
    """Override the plugin's own thresholds, by metric; decimals as strings. Of no effect while mode is Disabled."""
    inputs: Inputs | None = None
    """Compare on these too, beside the plugin's own cases. They are recorded in the artifact also while mode is Disabled."""
    timeout_seconds: Annotated[int, Field(ge=10, le=7200)] = 300
    """One comparison may take this long. Of no effect while mode is Disabled."""


_LIMIT = f"self.resources.limits['{GPU_RESOURCE}']"
# of a model on one GPU; a limit of more wastes them, and always could
_GPUS = "[1-9][0-9]*"


def _enough(resources: Resources | None, size: int) -> bool:
    asked = str((resources.limits if resources else {}).get(GPU_RESOURCE, size))
    return asked == str(size) or (size == 1 and re.fullmatch(_GPUS, asked) is not None)


class Serving(ApiType):
    """The pods that answer."""

    RULES = (
        Rule(
            "!has(self.acceleratorProduct) || self.accelerator == 'nvidia'",
            "serving.acceleratorProduct needs accelerator nvidia: it is the node label nvidia.com/gpu.product",
            lambda part: part.accelerator_product is None or part.accelerator == "nvidia",
        ),
        Rule(
            "!has(self.quantization) || self.accelerator == 'nvidia'",
            "serving.quantization needs accelerator nvidia: the CPU engine has no fp8",
            lambda part: part.quantization is None or part.accelerator == "nvidia",
        ),
        Rule(
            "self.tensorParallelSize == 1 || self.accelerator == 'nvidia'",
            "serving.tensorParallelSize above 1 needs accelerator nvidia: it is a number of GPUs",
            lambda part: part.tensor_parallel_size == 1 or part.accelerator == "nvidia",
        ),
        Rule(
            "!has(self.enginesPerAccelerator) || self.enginesPerAccelerator == 1"
            " || (has(self.apiServerCount) && self.apiServerCount > 1)",
            "serving.enginesPerAccelerator above 1 needs apiServerCount above 1: only then do vLLM's servers share one port",
            lambda part: (part.engines_per_accelerator or 1) == 1 or (part.api_server_count or 0) > 1,
        ),
        Rule(
            "!has(self.enginesPerAccelerator) || self.enginesPerAccelerator == 1 || self.tensorParallelSize == 1",
            "serving.enginesPerAccelerator and tensorParallelSize can't both be above 1: one puts several engines on a GPU, the"
            " other one engine on several",
            lambda part: (part.engines_per_accelerator or 1) == 1 or part.tensor_parallel_size == 1,
        ),
        Rule(
            f"!has(self.acceleratorProduct) || !has(self.nodeSelector) || !('{GPU_PRODUCT_LABEL}' in self.nodeSelector)"
            f" || self.nodeSelector['{GPU_PRODUCT_LABEL}'] == self.acceleratorProduct",
            f"serving.nodeSelector asks for another {GPU_PRODUCT_LABEL} than serving.acceleratorProduct: leave it out, it follows",
            lambda part: (
                part.accelerator_product in (None, part.node_selector.get(GPU_PRODUCT_LABEL, part.accelerator_product))
            ),
        ),
        Rule(
            "self.accelerator != 'nvidia' || !has(self.resources) || !has(self.resources.limits)"
            f" || !('{GPU_RESOURCE}' in self.resources.limits) || string({_LIMIT}) == string(self.tensorParallelSize)"
            f" || (self.tensorParallelSize == 1 && string({_LIMIT}).matches('^{_GPUS}$'))",
            f"the limit {GPU_RESOURCE} must be tensorParallelSize: leave it out, it follows",
            lambda part: part.accelerator != "nvidia" or _enough(part.resources, part.tensor_parallel_size),
        ),
        Rule(
            "!has(self.resourceClaims) || self.resourceClaims.size() == 0 || !has(self.resources) || !has(self.resources.limits)"
            f" || !self.resources.limits.exists(name, name.startsWith('{GPU_VENDOR}'))",
            "serving.resourceClaims and a limit of nvidia.com both ask for GPUs: leave one out",
            lambda part: (
                not (
                    part.resource_claims
                    and part.resources
                    and any(n.startswith(GPU_VENDOR) for n in part.resources.limits)
                )
            ),
        ),
        Rule(
            "self.loadFormat != 'tensorizer'",
            "serving.loadFormat tensorizer reads a format of its own, and artifacts hold safetensors only",
            None,
        ),
        Rule(
            "self.loadFormat != 'fastsafetensors' || self.accelerator == 'nvidia'",
            "serving.loadFormat fastsafetensors needs accelerator nvidia: it reads to the memory of a GPU",
            None,
        ),
    )

    accelerator: Accelerator
    """What the engine runs on."""
    accelerator_product: Annotated[LabelValue, Field(min_length=1)] | None = None
    """Run only on this GPU product, as the node label nvidia.com/gpu.product spells it (`NVIDIA-L4`). One product needs one comparison."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of pods. `kubectl scale` and autoscalers write it; it is not part of the revision."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format; the plugin's default for the accelerator if absent."""
    max_model_len: Annotated[int, Field(ge=1, le=1048576)] | None = None
    """Longest input in tokens; the checkpoint's own limit if absent."""
    load_format: LoadFormat = "auto"
    """How vLLM reads the weights, in its own words. auto and safetensors read the artifact as it is; fastsafetensors straight to the GPU,
    runai_streamer with many threads: both are in the engine image for nvidia, and on a CPU runai_streamer needs an image of your own
    (spec.image). tensorizer is refused, since artifacts hold safetensors only."""
    quantization: Literal["fp8"] | None = None
    """Weights and activations in 8 bits, made when the engine starts; nvidia only. Parity decides whether the model stands it."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs that hold one copy of the model together. Each pod asks for as many."""
    api_server_count: Annotated[int, Field(ge=1, le=64)] | None = None
    """Processes of each engine that parse, tokenise and answer; the engine decides from its cores if absent."""
    engines_per_accelerator: Annotated[int, Field(ge=1, le=8)] | None = None
    """Engines of one pod that share its GPU behind the pod's one port; the engine decides if absent. The pod is ready when all are."""
    max_in_flight: Annotated[int, Field(ge=1, le=100000)] | None = None
    """Requests that a pod works on at once; more are answered 503 with Retry-After."""
    trust_remote_code: bool = False
    """Run Python code from the checkpoint's repository. Needs the operator's permission (its setting allowTrustRemoteCode); pods carry the
    label encoders.dev/trust-remote-code, and the condition Accepted says so."""
    resources: Resources | None = None
    """Resources of each pod; the operator's default if absent. nvidia pods get tensorParallelSize GPUs unless a limit or a resource claim
    says otherwise."""
    resource_claims: ResourceClaims = Field(default_factory=list)
    """Devices by dynamic resource allocation, instead of the limit nvidia.com/gpu."""
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
    node_selector: NodeSelector = Field(default_factory=dict)
    """Node labels that all pods of the model need; the prep Job's too."""
    tolerations: Tolerations = Field(default_factory=list)
    """Taints that all pods of the model tolerate; the prep Job's too."""
    affinity: Affinity | None = None
    """Rules about nodes and other pods for the serving pods."""
    topology_spread_constraints: Annotated[
        list[TopologySpreadConstraint],
        Field(max_length=8, json_schema_extra=keyed("topologyKey", "whenUnsatisfiable")),
    ] = Field(default_factory=list)
    """How evenly the serving pods are spread over nodes or zones."""
    priority_class_name: Name | None = None
    """PriorityClass of the serving pods."""
    runtime_class_name: Name | None = None
    """RuntimeClass of the serving pods, as `nvidia` on some clusters."""
    image_pull_secrets: Annotated[list[NamedReference], Field(max_length=8, json_schema_extra=keyed("name"))] = Field(
        default_factory=list
    )
    """Secrets with which the images of all pods of the model are pulled."""
    pod_template: Annotated[
        dict[str, Any] | None, Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    ] = None
    """Merged into the serving pods' template, strategically, as `kubectl patch` does: the container `engine` by its name, variables,
    volumes and mounts by theirs. What the model's promises rest on is refused by its path (see docs/encodermodel.md)."""
