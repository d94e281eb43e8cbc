"""The pod template of a revision: rendered once, then kept byte for byte."""

from __future__ import annotations

from datetime import UTC, datetime

from encoder_operator import names
from encoder_operator.api import Resources
from encoder_operator.canonical import Json
from encoder_operator.manifests import security
from encoder_operator.model import Model
from encoder_operator.settings import Settings

PORT = 8000
ARTIFACTS = "/artifacts"
NEVER = datetime(1970, 1, 1, tzinfo=UTC)

# endpoints must have spread before the engine is told to stop; then it has 60 s to finish what it has begun
# (encoder_plugins.drain), and a little more to end
_SPREAD_SECONDS = 5
_GRACE_SECONDS = 90
# digests of a large checkpoint on a slow disk, then imports, compilation and graph capture
_START_SECONDS = 1800


def image(model: Model, settings: Settings) -> str:
    """Return today's engine image for the model."""
    return settings.images.engine[model.spec.serving.accelerator][model.plugin.name]


def render(model: Model, key: str, digest: str, *, shared: bool, settings: Settings) -> Json:
    """Return the pod template, without the revision's label, which is made from the rest."""
    spec: Json = security.pod_fields() | {
        "readinessGates": [{"conditionType": names.GATE}],
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "containers": [_container(model, key, digest, settings)],
        "volumes": [
            {"name": "artifacts", "persistentVolumeClaim": {"claimName": model.claim_name}},
            {"name": "tmp", "emptyDir": {}},
            # the engine's processes talk through shared memory; the runtime's own 64 MB are too little
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
    }
    spec |= security.placement(model.spec.serving)
    if not shared:
        spec["affinity"] = _one_node(model.name)
    return {"metadata": {"labels": names.labels(model.name, "serving")}, "spec": spec}


def _container(model: Model, key: str, digest: str, settings: Settings) -> Json:
    serving = model.spec.serving
    health = {"path": "/health", "port": "http"}
    return {
        "name": "engine",
        "image": image(model, settings),
        "imagePullPolicy": settings.images.pull_policy,
        "args": security.args(
            ["serve", f"{ARTIFACTS}/{key}", "--digest", digest, "--name", model.name, "--port", str(PORT)],
            ["--accelerator", serving.accelerator, "--dtype", model.dtype],
            security.option("--max-model-len", serving.max_model_len),
            security.option("--max-in-flight", serving.max_in_flight),
            ["--", *serving.args] if serving.args else [],
        ),
        "env": security.environment(
            {"HOME": "/tmp", "LOGNAME": "encoder", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}, serving.env
        ),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        # liveness and readiness begin only when this one has succeeded
        "startupProbe": {
            "httpGet": health,
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": _START_SECONDS,
        },
        "readinessProbe": {"httpGet": health, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 3},
        # a large request body holds the engine's event loop for seconds; that is no reason to kill it
        "livenessProbe": {"httpGet": health, "periodSeconds": 10, "timeoutSeconds": 15, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": _SPREAD_SECONDS}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": security.container_context(),
        "resources": security.resources(_resources(model, settings)),
        "volumeMounts": [
            {"name": "artifacts", "mountPath": ARTIFACTS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def _resources(model: Model, settings: Settings) -> Resources:
    found = model.spec.serving.resources or settings.serving_resources
    if model.spec.serving.accelerator == "nvidia" and names.GPU_RESOURCE not in found.limits:
        return Resources(requests=found.requests, limits={**found.limits, names.GPU_RESOURCE: "1"})
    return found


def _one_node(model: str) -> Json:
    """A ReadWriteOnce volume is on one node at a time: keep the model's pods together."""
    term = {
        "labelSelector": {"matchLabels": {names.MODEL: model, names.COMPONENT: "serving"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
