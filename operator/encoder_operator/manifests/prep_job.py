"""The prep Job: the only pod of a model that may reach the network, and the only one that sees a token."""

from __future__ import annotations

from encoder_operator import names
from encoder_operator.canonical import Json, digest
from encoder_operator.manifests import security
from encoder_operator.manifests.serving_template import ARTIFACTS
from encoder_operator.model import Model
from encoder_operator.settings import Settings

# trying again changes nothing: space, access, not found, checksum, unsupported
FINAL_EXIT_CODES = (22, 28, 44, 65, 69)
_TOKEN = "/var/run/encoders/token"
_SOURCE = "/source"
_INPUTS = "/inputs"


def inputs(model: Model, key: str) -> str:
    """Return the hash of all that a person wrote about this Job; a changed one is worth another try."""
    spec = model.spec
    found = {
        "key": key,
        "claim": model.claim_name,
        "source": _known_first(spec.source.model_dump(mode="json"), spec.source.model_dump(exclude_defaults=True)),
        "prepare": _known_first(spec.prepare.model_dump(mode="json"), spec.prepare.model_dump(exclude_defaults=True)),
        "placement": security.placement(spec.serving),
    }
    return digest(found)[:16]


# fields that came later: one that is not used changes nothing
_LATER = frozenset(
    {"auxiliary", "s3", "http", "allow_mutable_revision", "ca_config_map_ref", "node_selector", "tolerations"}
)


def _known_first(whole: Json, said: Json) -> Json:
    return {
        name: _known_first(value, said.get(name, {})) if isinstance(value, dict) and name == "hugging_face" else value
        for name, value in whole.items()
        if name not in _LATER or name in said
    }


def render(model: Model, key: str, settings: Settings) -> Json:
    """Return the Job that prepares the artifact ``key``."""
    labels = names.labels(model.name, "prep")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.prep_job(model.name, key),
            "namespace": model.namespace,
            "labels": labels,
            "annotations": {names.INPUTS: inputs(model, key), names.RETRY: model.retry},
            "ownerReferences": [names.owner(model.name, model.uid)],
        },
        "spec": {
            "backoffLimit": model.spec.prepare.backoff_limit,
            "activeDeadlineSeconds": model.spec.prepare.active_deadline_seconds,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(FINAL_EXIT_CODES)}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {"metadata": {"labels": labels}, "spec": _pod(model, key, settings)},
        },
    }


def _pod(model: Model, key: str, settings: Settings) -> Json:
    mounts: list[Json] = [{"name": "artifacts", "mountPath": ARTIFACTS}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Json] = [
        {"name": "artifacts", "persistentVolumeClaim": {"claimName": model.claim_name}},
        {"name": "tmp", "emptyDir": {}},
    ]
    source = model.spec.source
    if source.pvc is not None:
        volumes.append({"name": "source", "persistentVolumeClaim": {"claimName": source.pvc.claim_name}})
        mounts.append({"name": "source", "mountPath": _SOURCE, "readOnly": True})
    if source.hugging_face is not None and source.hugging_face.token_secret_ref is not None:
        secret = source.hugging_face.token_secret_ref
        item = {"name": secret.name, "items": [{"key": secret.key, "path": "token"}]}
        volumes.append({"name": "token", "projected": {"defaultMode": 0o440, "sources": [{"secret": item}]}})
        mounts.append({"name": "token", "mountPath": _TOKEN, "readOnly": True})
    if model.spec.parity.inputs is not None:
        named = model.spec.parity.inputs.config_map_ref
        item = {"name": named.name, "items": [{"key": named.key, "path": "inputs.json"}]}
        volumes.append({"name": "inputs", "configMap": item})
        mounts.append({"name": "inputs", "mountPath": _INPUTS, "readOnly": True})
    container = {
        "name": "prepare",
        "image": settings.images.prep[model.plugin.name],
        "imagePullPolicy": settings.images.pull_policy,
        "args": _arguments(model, key, settings),
        "env": security.environment({"HOME": "/tmp", "LOGNAME": "encoder"}, model.spec.prepare.env),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": security.container_context(),
        "resources": security.resources(model.spec.prepare.resources or settings.prep_resources),
        "volumeMounts": mounts,
    }
    pod = security.pod_fields() | {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return pod | security.placement(model.spec.serving)


def _arguments(model: Model, key: str, settings: Settings) -> list[str]:
    found = model.spec.source
    output = f"{ARTIFACTS}/{key}"
    common = ["--stall-seconds", str(settings.prep_stall_seconds), "--termination-log", "/dev/termination-log"]
    if model.spec.prepare.allow_pickle:
        common.append("--allow-pickle")
    for further in found.auxiliary:
        common += ["--auxiliary", f"{further.repo}@{further.revision}"]
    if model.inputs:
        # what is mounted must be what the key was made of
        common += ["--inputs", f"{_INPUTS}/inputs.json", "--inputs-sha256", model.inputs]
    if found.hugging_face is not None:
        hub = found.hugging_face
        return security.args(
            ["prepare", model.plugin.name, hub.repo, output, "--revision", hub.revision],
            security.option("--endpoint", hub.endpoint),
            ["--token-file", f"{_TOKEN}/token"] if hub.token_secret_ref else [],
            common,
        )
    path = found.pvc.path.strip("/") if found.pvc is not None else ""
    return ["prepare", model.plugin.name, f"{_SOURCE}/{path}".rstrip("/"), output, *common]
