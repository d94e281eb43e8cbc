"""Checks of a spec that go beyond its schema. Each error message names the field and an alternative."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import LabelSelector, Prepare, Resources, Serving, Spec
from encoder_operator.api.v1alpha1.quantity import parse_quantity
from encoder_operator.manager.settings import Settings
from encoder_operator.naming import GPU_PRODUCT_LABEL
from encoder_operator.state.observed import PersistentVolumeClaim
from encoder_operator.status.reasons import Reason
from encoder_operator.validation import pod_template, tenancy, vllm_args
from encoder_operator.validation.errors import NotAccepted
from encoder_plugins import parameters
from encoder_plugins.plugin import Plugin, resolve

# seconds that a serving pod needs to shut down: the drain of encoder_plugins, and a margin
GRACE_SECONDS = 90
_HUGE_PAGES = "hugepages-"
_QUOTA_PREFIX = "requests."
_STANDARD_RESOURCE = r"cpu|memory|ephemeral-storage|hugepages-.+"


def check_spec(spec: Spec, plugin: Plugin, settings: Settings) -> None:
    """Check that a spec can work and that the administrator's settings allow it.

    Raises:
        NotAccepted: The user must change the spec, or an administrator the operator's settings.
    """
    tenancy.check(spec, settings)
    _check_accelerator(spec.serving, plugin)
    _check_limits(spec.serving, plugin)
    _check_media(spec.serving, plugin)
    if spec.serving.resources is not None:
        _check_resources("serving", spec.serving.resources, gpu_limit(spec.serving, spec.serving.resources))
    if spec.prepare.resources is not None:
        _check_resources("prepare", spec.prepare.resources, {})
    create = spec.storage.create
    if create is not None and parse_quantity(create.size) <= 0:
        raise NotAccepted(Reason.INVALID_SPEC, "spec.storage.create.size: a volume must have more than 0 bytes")
    _check_parameters(spec.prepare, plugin)
    _check_thresholds(spec, plugin)
    _check_label_sets(spec, plugin)
    _check_arguments(spec)
    _check_loading(spec)
    for field, trusts in (("serving", spec.serving.trust_remote_code), ("prepare", spec.prepare.trust_remote_code)):
        if trusts and not settings.allow_trust_remote_code:
            raise NotAccepted(
                Reason.REMOTE_CODE_DENIED,
                f"spec.{field}.trustRemoteCode: this operator does not allow code from repositories (setting allowTrustRemoteCode)",
            )
    if spec.serving.pod_template is not None:
        found = pod_template.find_violation(spec.serving.pod_template, GRACE_SECONDS)
        if found is not None:
            raise NotAccepted(
                Reason.POD_TEMPLATE_DENIED, f"spec.serving.podTemplate: {found.path} is not allowed: {found.why}"
            )
    _check_images(spec, settings)


def check_name(name: str) -> None:
    """Check that the names of all children can be derived from a model's name.

    Raises:
        NotAccepted: The EncoderModel needs another name.
    """
    if len(name) > naming.MAX_MODEL_NAME:
        raise NotAccepted(Reason.INVALID_SPEC, naming.NAME_TOO_LONG)
    if not re.fullmatch(naming.MODEL_NAME, name):
        raise NotAccepted(Reason.INVALID_SPEC, naming.INVALID_NAME)


def check_volume(spec: Spec, model: str, namespace: str, pvc: PersistentVolumeClaim) -> None:
    """Check that the existing volume can do what the spec requests.

    Raises:
        NotAccepted: The EncoderModel needs another volume, or the spec requests too much of this one.
    """
    if pvc.single_pod:
        raise NotAccepted(
            Reason.ONE_POD_ONLY,
            f"PersistentVolumeClaim {pvc.name} is ReadWriteOncePod, so only one pod can mount it, but preparation, parity checks and"
            " updates need a second pod: use a ReadWriteOnce or ReadWriteMany claim",
        )
    if not pvc.shared:
        check_single_node(spec, model, namespace)


def check_single_node(spec: Spec, model: str, namespace: str) -> None:
    """Check that the spec does not separate pods that share a ReadWriteOnce volume.

    Raises:
        NotAccepted: The spec requests both.
    """
    serving = spec.serving
    own = serving_labels(spec, model)
    affinity = serving.affinity
    why = "the volume is ReadWriteOnce, which keeps all pods of the model on one node"
    if affinity is not None and affinity.pod_anti_affinity is not None:
        for term in affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution:
            here = not term.namespaces and term.namespace_selector is None
            everywhere = term.namespace_selector == LabelSelector()
            selector = term.label_selector
            if (here or everywhere or namespace in term.namespaces) and selector is not None and selector.matches(own):
                raise NotAccepted(
                    Reason.ONE_NODE_ONLY,
                    f"spec.serving.affinity.podAntiAffinity requires the model's pods to be separated by {term.topology_key}, but"
                    f" {why}: use a preferred term, or a ReadWriteMany volume",
                )
    if (
        affinity is not None
        and affinity.pod_affinity is not None
        and affinity.pod_affinity.required_during_scheduling_ignored_during_execution
    ):
        # the scheduler places the first pod of a group only if it matches every required term itself
        raise NotAccepted(
            Reason.ONE_NODE_ONLY,
            f"spec.serving.affinity.podAffinity must not have required terms, because {why} by a required term of the"
            " operator: use a preferred term, or a ReadWriteMany volume",
        )
    for constraint in serving.topology_spread_constraints:
        if constraint.when_unsatisfiable == "DoNotSchedule" and (
            constraint.label_selector is None or constraint.label_selector.matches(own)
        ):
            raise NotAccepted(
                Reason.ONE_NODE_ONLY,
                f"spec.serving.topologySpreadConstraints requires the model's pods to be spread by {constraint.topology_key},"
                f" but {why}: use ScheduleAnyway, or a ReadWriteMany volume",
            )
    for key, value in spec.prepare.node_selector.items():
        other = node_selector(serving).get(key, value)
        if other != value:
            raise NotAccepted(
                Reason.ONE_NODE_ONLY,
                f"spec.prepare.nodeSelector sets {key}: {value} and spec.serving sets {other}, but {why}, including the prep Job:"
                " use the same value, or a ReadWriteMany volume",
            )


def serving_labels(spec: Spec, model: str) -> dict[str, str]:
    """Return the labels of a model's serving pods without the revision."""
    added = (spec.serving.pod_template or {}).get("metadata", {}).get("labels", {})
    code = {naming.TRUST_REMOTE_CODE: "true"} if spec.serving.trust_remote_code else {}
    return {**added, **naming.labels(model, "serving"), **code}


def node_selector(serving: Serving) -> dict[str, str]:
    """Return the node selector of the serving pods."""
    product = {GPU_PRODUCT_LABEL: serving.accelerator_product} if serving.accelerator_product else {}
    return dict(sorted({**serving.node_selector, **product}.items()))


def gpu_limit(serving: Serving, resources: Resources) -> dict[str, str]:
    """Return the limit of GPUs that a serving pod gets beside its resources; nothing where those, or claims, say which devices it has."""
    if serving.accelerator != "nvidia" or serving.resource_claims:
        return {}
    given = any(name.startswith(naming.GPU_VENDOR) for name in resources.limits)
    return {} if given else {naming.GPU_RESOURCE: str(serving.tensor_parallel_size)}


def _check_accelerator(serving: Serving, plugin: Plugin) -> None:
    if serving.dtype is None and serving.accelerator not in dict(plugin.dtypes):
        raise NotAccepted(
            Reason.UNSUPPORTED_ACCELERATOR,
            f"spec.serving.accelerator: plugin {plugin.name} has no default dtype for {serving.accelerator};"
            f" it supports {', '.join(dict(plugin.dtypes))}",
        )


def _check_limits(serving: Serving, plugin: Plugin) -> None:
    known = [limit.name for limit in plugin.limits]
    for name in sorted(serving.limits):
        if name not in known:
            raise NotAccepted(
                Reason.INVALID_SPEC,
                f"spec.serving.limits.{name}: plugin {plugin.name} has no such limit; it has {', '.join(known)}",
            )


def _check_media(serving: Serving, plugin: Plugin) -> None:
    if serving.media is not None and not plugin.takes_images:
        raise NotAccepted(Reason.INVALID_SPEC, f"spec.serving.media: plugin {plugin.name} takes no images")


def _check_resources(field: str, resources: Resources, own: Mapping[str, str]) -> None:
    """Refuse what the API server refuses in a pod: that of serving pods would be found only after the preparation.

    Args:
        field: The part of the spec.
        resources: Its resources.
        own: The limits that the operator sets.
    """
    requests, limits = resources.requests, {**resources.limits, **own}
    for name in sorted({**requests, **limits}):
        part = f"spec.{field}.resources.{'requests' if name in requests else 'limits'}.{name}"
        if "/" not in name and not re.fullmatch(_STANDARD_RESOURCE, name):
            raise NotAccepted(
                Reason.INVALID_SPEC,
                f"{part}: containers have no such resource; they have cpu, memory, ephemeral-storage, hugepages-SIZE and"
                " extended resources such as nvidia.com/gpu",
            )
        if name.startswith(_QUOTA_PREFIX):
            raise NotAccepted(
                Reason.INVALID_SPEC,
                f"{part}: names with the prefix {_QUOTA_PREFIX} belong to quotas: use {name.removeprefix(_QUOTA_PREFIX)}",
            )
        whole = "/" in name or name.startswith(_HUGE_PAGES)
        if name in requests and whole and parse_quantity(requests[name]) != parse_quantity(limits.get(name, 0)):
            raise NotAccepted(
                Reason.INVALID_SPEC,
                f"{part}: containers cannot request more or less of {name} than their limit, which is"
                f" {limits.get(name, 'not set')}: set the limit only",
            )
        if name.startswith(_HUGE_PAGES):
            _check_huge_pages(part, name, limits, bounded=bool({"cpu", "memory"} & {*requests, *limits}))
        if "/" in name and parse_quantity(limits.get(name, 0)) % 1:
            raise NotAccepted(
                Reason.INVALID_SPEC,
                f"spec.{field}.resources.limits.{name}: {limits[name]} is not a whole number, and devices are not divided",
            )
        if name not in requests or name not in limits:
            continue
        if parse_quantity(requests[name]) > parse_quantity(limits[name]):
            raise NotAccepted(
                Reason.INVALID_SPEC, f"{part}: {requests[name]} is more than the limit, which is {limits[name]}"
            )


def _check_huge_pages(part: str, name: str, limits: Mapping[str, int | str], *, bounded: bool) -> None:
    size = parse_quantity(name.removeprefix(_HUGE_PAGES))
    if not isinstance(size, Decimal) or size <= 0 or size % 1:
        raise NotAccepted(
            Reason.INVALID_SPEC, f"{part}: the name must end with the size of a page, as in hugepages-2Mi"
        )
    wanted = limits.get(name, "0")
    if parse_quantity(wanted) % size:
        raise NotAccepted(Reason.INVALID_SPEC, f"{part}: {wanted} is not a multiple of the page size")
    if not bounded:
        raise NotAccepted(
            Reason.INVALID_SPEC, f"{part}: containers with huge pages need a request or limit of cpu or memory"
        )


def _check_parameters(prepare: Prepare, plugin: Plugin) -> None:
    try:
        parameters.check(plugin, prepare.parameters)
    except ValueError as error:
        raise NotAccepted(Reason.INVALID_SPEC, f"spec.prepare.parameters.{error}") from None


def _check_thresholds(spec: Spec, plugin: Plugin) -> None:
    overrides, serving = spec.parity.thresholds, spec.serving
    if not overrides or spec.parity.mode == "Disabled":
        return
    # imported here: it needs numpy, whose memory only an operator with such a model has to spend
    from encoder_plugins.parity import verdict

    dtype = serving.dtype or plugin.dtype(serving.accelerator)
    try:
        verdict.tolerance_of(resolve(plugin.parity), dtype, overrides, quantization=serving.quantization)
    except ValueError as error:
        raise NotAccepted(Reason.INVALID_SPEC, f"spec.parity.thresholds: {error}") from None


def _check_label_sets(spec: Spec, plugin: Plugin) -> None:
    if spec.label_sets and not plugin.label_sets:
        raise NotAccepted(Reason.INVALID_SPEC, f"spec.labelSets: plugin {plugin.name} takes no label sets")


def _check_arguments(spec: Spec) -> None:
    for argument in spec.serving.args:
        option = vllm_args.denied_option(argument)
        if option is not None:
            raise NotAccepted(
                Reason.ARGUMENT_DENIED,
                f"spec.serving.args: {argument!r} sets --{option}, which is not allowed: {vllm_args.DENIED[option]}",
            )
    part: Serving | Prepare
    for field, part in (("serving", spec.serving), ("prepare", spec.prepare)):
        for variable in part.env:
            why = vllm_args.DENIED_ENVIRONMENT.get(variable.name)
            if why is not None:
                raise NotAccepted(Reason.ENVIRONMENT_DENIED, f"spec.{field}.env: {variable.name} is not allowed: {why}")


def _check_loading(spec: Spec) -> None:
    wanted, own = spec.serving.load_format, spec.image is not None
    if wanted == "tensorizer":
        why = (
            "tensorizer reads its own serialization format, and artifacts contain only safetensors; weights from elsewhere would not"
            " be covered by the artifact's digest"
        )
    elif wanted == "fastsafetensors" and spec.serving.accelerator != "nvidia":
        why = "fastsafetensors copies files directly to GPU memory and needs accelerator nvidia"
    elif wanted == "runai_streamer" and spec.serving.accelerator != "nvidia" and not own:
        why = (
            "runai_streamer needs the package runai-model-streamer, which the engine image for nvidia contains and the one for CPUs does"
            " not: set spec.image to an image that contains it"
        )
    else:
        return
    raise NotAccepted(Reason.LOAD_FORMAT_UNSUPPORTED, f"spec.serving.loadFormat: {why}")


def _check_images(spec: Spec, settings: Settings) -> None:
    accelerator, plugin = spec.serving.accelerator, spec.plugin
    if spec.image is not None and not re.fullmatch(naming.IMAGE, spec.image):
        raise NotAccepted(Reason.INVALID_SPEC, f"spec.image: {spec.image}: {naming.NOT_AN_IMAGE}")
    engine = spec.image or settings.images.engine.get(accelerator, {}).get(plugin)
    missing = [
        what
        for what, image in (
            (f"engine.{accelerator}.{plugin}", engine),
            (f"prep.{plugin}", settings.images.prep.get(plugin)),
            ("operator", settings.images.operator),
        )
        if not image
    ]
    if missing:
        raise NotAccepted(
            Reason.NO_IMAGE,
            f"no image is configured for {', '.join(missing)}: set it in the chart's values",
        )
