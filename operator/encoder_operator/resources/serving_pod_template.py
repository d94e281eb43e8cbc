"""The pod template of a revision, which is built once and then kept unchanged."""

from __future__ import annotations

from datetime import UTC, datetime

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import Resources, Serving
from encoder_operator.manager.settings import Settings
from encoder_operator.resources import pod_defaults, scheduling
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.validation import checks, pod_template

PORT = 8000
ARTIFACTS_PATH = "/artifacts"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# time for the endpoint removal to propagate before the engine receives SIGTERM and drains (checks.GRACE_SECONDS)
_ENDPOINT_REMOVAL_SECONDS = 5
# checksums of a large checkpoint on a slow disk, imports, compilation and graph capture
_STARTUP_SECONDS = 1800


def engine_image(model: EncoderModel, settings: Settings) -> str:
    """Return the current engine image for the model."""
    return model.spec.image or settings.images.engine[model.spec.serving.accelerator][model.plugin.name]


def build(model: EncoderModel, key: str, digest: str, *, shared: bool, settings: Settings) -> Json:
    """Return the pod template without the revision label, whose value is a hash of the template."""
    serving = model.spec.serving
    spec: Json = pod_defaults.pod_fields(fixed_user=settings.fixed_user) | {
        "readinessGates": [{"conditionType": naming.GATE}],
        "terminationGracePeriodSeconds": checks.GRACE_SECONDS,
        "containers": [_container(model, key, digest, settings)],
        "volumes": [
            {"name": "artifacts", "persistentVolumeClaim": {"claimName": model.pvc_name}},
            {"name": "tmp", "emptyDir": {}},
            # the engine's processes use shared memory, and the container runtime's default is only 64 MB
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{serving.tensor_parallel_size}Gi"}},
        ],
    }
    spec |= scheduling.serving(model, shared=shared)
    if serving.resource_claims:
        spec["resourceClaims"] = [
            entry.model_dump(by_alias=True, exclude_none=True, exclude={"request"}, mode="json")
            for entry in serving.resource_claims
        ]
    labels = naming.labels(model.name, "serving") | scheduling.pvc_labels(model, shared=shared)
    if serving.trust_remote_code:
        labels[naming.TRUST_REMOTE_CODE] = "true"
    template = {"metadata": {"labels": labels}, "spec": spec}
    if serving.pod_template is None:
        return template
    return pod_template.merge(template, serving.pod_template, pod_defaults.container_context())


def _container(model: EncoderModel, key: str, digest: str, settings: Settings) -> Json:
    serving = model.spec.serving
    health = {"path": "/health", "port": "http"}
    further = [*_engine_arguments(serving), *serving.args]
    return {
        "name": pod_template.ENGINE,
        "image": engine_image(model, settings),
        "imagePullPolicy": settings.images.pull_policy,
        "args": pod_defaults.join_arguments(
            ["serve", f"{ARTIFACTS_PATH}/{key}", "--digest", digest, "--name", model.name, "--port", str(PORT)],
            ["--accelerator", serving.accelerator, "--dtype", model.dtype],
            pod_defaults.option_arguments("--max-model-len", serving.max_model_len),
            pod_defaults.option_arguments("--max-in-flight", serving.max_in_flight),
            # sorted, so that the order in the spec makes no revision
            *(["--limit", f"{name}={value}"] for name, value in sorted(serving.limits.items())),
            *(["--allowed-media-host", host] for host in (serving.media.allowed_hosts if serving.media else ())),
            pod_defaults.option_arguments("--engines", _engines(serving)),
            pod_defaults.option_arguments("--api-servers", serving.api_server_count),
            ["--", *further] if further else [],
        ),
        "env": pod_defaults.environment(
            {"HOME": "/tmp", "LOGNAME": "encoder", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}, serving.env
        ),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        # liveness and readiness probes start only after this one has succeeded
        "startupProbe": {
            "httpGet": health,
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": _STARTUP_SECONDS,
        },
        "readinessProbe": {"httpGet": health, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 3},
        # a large request body can block the engine's event loop for seconds
        "livenessProbe": {"httpGet": health, "periodSeconds": 10, "timeoutSeconds": 15, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": _ENDPOINT_REMOVAL_SECONDS}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": pod_defaults.container_context(),
        "resources": _resources(model, settings),
        "volumeMounts": [
            {"name": "artifacts", "mountPath": ARTIFACTS_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def _engines(serving: Serving) -> int | None:
    """Return the number of engines per GPU, or None to let the entry point choose."""
    if serving.tensor_parallel_size > 1 or serving.api_server_count == 1:
        return 1
    return serving.engines_per_accelerator


def _engine_arguments(serving: Serving) -> list[str]:
    """Return the vLLM arguments of the fields that are set."""
    size = serving.tensor_parallel_size
    return pod_defaults.join_arguments(
        ["--load-format", serving.load_format] if serving.load_format != "auto" else [],
        pod_defaults.option_arguments("--quantization", serving.quantization),
        ["--tensor-parallel-size", str(size)] if size > 1 else [],
        ["--trust-remote-code"] if serving.trust_remote_code else [],
    )


def _resources(model: EncoderModel, settings: Settings) -> Json:
    serving = model.spec.serving
    wanted = serving.resources or settings.serving_resources
    limits = {**wanted.limits, **checks.gpu_limit(serving, wanted)}
    found: Json = pod_defaults.resources(Resources(requests=wanted.requests, limits=limits))
    if serving.resource_claims:
        found["claims"] = [
            entry.model_dump(exclude_none=True, include={"name", "request"}, mode="json")
            for entry in serving.resource_claims
        ]
    return found
