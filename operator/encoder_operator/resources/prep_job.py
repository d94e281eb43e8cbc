"""The prep Job. Its pod is the only one of a model with network access and a token."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import CaBundle, Source
from encoder_operator.api.v1alpha1.label_sets import LabelSet
from encoder_operator.manager.settings import Defaults, NamedKey, Settings
from encoder_operator.resources import pod_defaults, scheduling
from encoder_operator.resources.serving_pod_template import ARTIFACTS_PATH
from encoder_operator.revisions.hashing import Json, json_digest
from encoder_operator.state.desired import EncoderModel
from encoder_plugins import parameters

# a retry would fail again: no space, no access, not found, checksum mismatch, unsupported
FINAL_EXIT_CODES = (22, 28, 44, 65, 69)
_TOKEN = "/var/run/encoders/token"
_CREDENTIALS = "/run/secrets/source"
_CA = "/run/ca"
# read by huggingface_hub
_HUB_ENDPOINT = "HF_ENDPOINT"
_S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_S3_SESSION = "AWS_SESSION_TOKEN"
# readable by the group of the pod
_SECRET_MODE = 0o440
_SOURCE = "/source"
_INPUTS = "/inputs"
_LABEL_SETS = "/label-sets"


def inputs_hash(model: EncoderModel, key: str) -> str:
    """Return the hash of everything in the spec that affects this Job. A change is worth another attempt."""
    spec = model.spec
    found: Json = {
        "key": key,
        "claim": model.pvc_name,
        "source": _without_unused_later_fields(
            spec.source.model_dump(mode="json"), spec.source.model_dump(exclude_defaults=True)
        ),
        "prepare": _without_unused_later_fields(
            spec.prepare.model_dump(mode="json"), spec.prepare.model_dump(exclude_defaults=True)
        ),
        "placement": scheduling.common_fields(spec.serving),
    }
    if spec.label_sets:
        found["labelSets"] = [entry.model_dump(mode="json") for entry in spec.label_sets]
    affinity, product = spec.serving.affinity, spec.serving.accelerator_product
    if affinity is not None or product is not None or spec.serving.image_pull_secrets:
        secrets = [entry.name for entry in spec.serving.image_pull_secrets]
        found["nodes"] = {
            "affinity": affinity and affinity.model_dump(mode="json"),
            "product": product,
            "pull": secrets,
        }
    return json_digest(found)[:16]


# fields of later versions, which must not change the hash while they are unused
_LATER_FIELDS = frozenset(
    {
        "auxiliary",
        "s3",
        "http",
        "allow_mutable_revision",
        "ca_config_map_ref",
        "node_selector",
        "tolerations",
        "trust_remote_code",
        "parameters",
        "service_account_name",
    }
)


def _without_unused_later_fields(complete: Json, explicit: Json) -> Json:
    return {
        name: _without_unused_later_fields(value, explicit.get(name, {}))
        if isinstance(value, dict) and name == "hugging_face"
        else value
        for name, value in complete.items()
        if name not in _LATER_FIELDS or name in explicit
    }


def build(model: EncoderModel, key: str, *, shared: bool, settings: Settings) -> Json:
    """Return the Job that prepares the artifact `key`.

    Args:
        model: The desired state.
        key: Key of the artifact.
        shared: Whether several nodes can mount the volume at the same time.
        settings: Current images and defaults.
    """
    labels = naming.labels(model.name, "prep")
    if model.prep_trusts_remote_code:
        labels[naming.TRUST_REMOTE_CODE] = "true"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": naming.prep_job(model.name, key),
            "namespace": model.namespace,
            # of the Job alone: a queue that admits Jobs would also count pods that have the label
            "labels": labels | ({naming.QUEUE: model.queue} if model.queue else {}),
            "annotations": {naming.INPUTS: inputs_hash(model, key), naming.RETRY: model.retry},
            "ownerReferences": [naming.owner_reference(model.name, model.uid)],
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
            "template": {
                "metadata": {"labels": labels | scheduling.pvc_labels(model, shared=shared)},
                "spec": _pod(model, key, shared=shared, settings=settings),
            },
        },
    }


def _pod(model: EncoderModel, key: str, *, shared: bool, settings: Settings) -> Json:
    mounts: list[Json] = [{"name": "artifacts", "mountPath": ARTIFACTS_PATH}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Json] = [
        {"name": "artifacts", "persistentVolumeClaim": {"claimName": model.pvc_name}},
        {"name": "tmp", "emptyDir": {}},
    ]
    for name, (volume, path) in _input_volumes(model, settings.defaults).items():
        volumes.append({"name": name, **volume})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    source = model.spec.source.pvc
    if source is not None and source.claim_name == model.pvc_name:
        # a pod mounts a PVC once: the kubelet treats two volumes of the same PVC as one, which is read-only if either
        # of them is
        mounts.append({"name": "artifacts", "mountPath": _SOURCE, "readOnly": True})
    container = {
        "name": "prepare",
        "image": settings.images.prep[model.plugin.name],
        "imagePullPolicy": settings.images.pull_policy,
        "args": _arguments(model, key, settings),
        "env": _environment(model, settings.defaults),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": pod_defaults.container_context(),
        "resources": pod_defaults.resources(model.spec.prepare.resources or settings.prep_resources),
        "volumeMounts": mounts,
    }
    pod = pod_defaults.pod_fields(fixed_user=settings.fixed_user) | {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": volumes,
    }
    if model.spec.prepare.service_account_name is not None:
        # its token is not mounted: webhooks and metadata servers of clouds provide credentials without it
        pod["serviceAccountName"] = model.spec.prepare.service_account_name
    return pod | scheduling.prep(model, shared=shared)


def _environment(model: EncoderModel, defaults: Defaults) -> list[Json]:
    """Return the variables of the prep Job. The model's own ones replace the administrator's defaults."""
    chosen = {entry.name for entry in model.spec.prepare.env}
    proxy = defaults.proxy
    given = {
        "HTTP_PROXY": proxy.http,
        "HTTPS_PROXY": proxy.https,
        "NO_PROXY": proxy.no_proxy,
        # an argument for the endpoint, from the model, takes precedence
        _HUB_ENDPOINT: defaults.hub_endpoint,
    }
    fixed = {"HOME": "/tmp", "LOGNAME": "encoder"}
    wanted = {name: value for name, value in given.items() if value and name not in chosen}
    return pod_defaults.environment(fixed | wanted, model.spec.prepare.env)


def _default_token(model: EncoderModel, defaults: Defaults) -> NamedKey | None:
    """Return the administrator's token, which is sent only to the administrator's hub and only if the model has none."""
    hub = model.spec.source.hugging_face
    elsewhere = any(entry.name == _HUB_ENDPOINT for entry in model.spec.prepare.env)
    if hub is None or hub.token_secret_ref is not None or hub.endpoint is not None or elsewhere:
        return None
    return defaults.token_secret if defaults.token_secret.name else None


def _default_ca(model: EncoderModel, defaults: Defaults) -> NamedKey | None:
    """Return the administrator's CA certificates if the model names none."""
    wanted = defaults.ca_config_map.name and _ca_bundle(model.spec.source) is None
    return defaults.ca_config_map if wanted else None


def _input_volumes(model: EncoderModel, defaults: Defaults) -> dict[str, tuple[Json, str]]:
    """Return the Job's input volumes and their mount paths, by name."""
    source = model.spec.source
    found: dict[str, tuple[Json, str]] = {}
    item: Json
    if source.pvc is not None and source.pvc.claim_name != model.pvc_name:
        # read-only on the volume, because for a read-only mount alone the kubelet would still change the group of every
        # file
        found["source"] = {"persistentVolumeClaim": {"claimName": source.pvc.claim_name, "readOnly": True}}, _SOURCE
    if source.hugging_face is not None and source.hugging_face.token_secret_ref is not None:
        secret = source.hugging_face.token_secret_ref
        item = {"name": secret.name, "items": [{"key": secret.key, "path": "token"}]}
        found["token"] = {"projected": {"defaultMode": _SECRET_MODE, "sources": [{"secret": item}]}}, _TOKEN
    if source.s3 is not None and source.s3.credentials_secret_ref is not None:
        name = source.s3.credentials_secret_ref.name
        found["credentials"] = _credentials_volume(name), _CREDENTIALS
    bundle = _ca_bundle(source)
    if bundle is not None:
        item = {"name": bundle.name, "items": [{"key": bundle.key, "path": "ca.crt"}]}
        found["ca"] = {"configMap": item}, _CA
    # a namespace need not have what the defaults name
    if (token := _default_token(model, defaults)) is not None:
        item = {"name": token.name, "items": [{"key": token.key, "path": "token"}], "optional": True}
        found["token"] = {"projected": {"defaultMode": _SECRET_MODE, "sources": [{"secret": item}]}}, _TOKEN
    if (ca := _default_ca(model, defaults)) is not None:
        item = {"name": ca.name, "items": [{"key": ca.key, "path": "ca.crt"}], "optional": True}
        found["ca"] = {"configMap": item}, _CA
    if model.spec.parity.inputs is not None:
        named = model.spec.parity.inputs.config_map_ref
        item = {"name": named.name, "items": [{"key": named.key, "path": "inputs.json"}]}
        found["inputs"] = {"configMap": item}, _INPUTS
    if mounted := [
        {"configMap": {"name": ref.name, "items": [{"key": ref.key, "path": entry.name}]}}
        for entry in model.spec.label_sets
        if (ref := entry.config_map_ref) is not None
    ]:
        found["label-sets"] = {"projected": {"sources": mounted}}, _LABEL_SETS
    return found


def _credentials_volume(secret: str) -> Json:
    needed = {"name": secret, "items": [{"key": key, "path": key} for key in _S3_KEYS]}
    # only temporary credentials have a session token
    session = {"name": secret, "items": [{"key": _S3_SESSION, "path": _S3_SESSION}], "optional": True}
    return {"projected": {"defaultMode": _SECRET_MODE, "sources": [{"secret": needed}, {"secret": session}]}}


def _ca_bundle(source: Source) -> CaBundle | None:
    part = source.hugging_face or source.s3 or source.http
    return part.ca_config_map_ref if part is not None else None


def _arguments(model: EncoderModel, key: str, settings: Settings) -> list[str]:
    found = model.spec.source
    output = f"{ARTIFACTS_PATH}/{key}"
    common = ["--stall-seconds", str(settings.prep_stall_seconds), "--termination-log", "/dev/termination-log"]
    if model.spec.prepare.allow_pickle:
        common.append("--allow-pickle")
    if model.prep_trusts_remote_code:
        common.append("--trust-remote-code")
    for parameter in parameters.arguments(model.spec.prepare.parameters):
        common += ["--parameter", parameter]
    for further in found.auxiliary:
        common += ["--auxiliary", f"{further.repo}@{further.revision}"]
    for entry in model.spec.label_sets:
        common += ["--label-set", f"{entry.name}={_location(entry)}@{entry.sha256}"]
    if model.inputs_hash:
        # the Job fails if the mounted content does not match the artifact key
        common += ["--inputs", f"{_INPUTS}/inputs.json", "--inputs-sha256", model.inputs_hash]
    defaults = settings.defaults
    ca, token = _default_ca(model, defaults), _default_token(model, defaults)
    if ca is not None or _ca_bundle(found) is not None:
        common += ["--ca-file", f"{_CA}/ca.crt"]
    if token is not None:
        common += ["--token-file", f"{_TOKEN}/token"]
    if ca is not None or token is not None:
        common.append("--optional-files")
    in_buckets = found.s3 is not None or any(entry.s3 is not None for entry in model.spec.label_sets)
    keys = found.s3.credentials_secret_ref if found.s3 is not None else None
    if in_buckets and keys is None and model.spec.prepare.service_account_name:
        common.append("--ambient-credentials")
    where, options = _checkpoint_arguments(found)
    return ["prepare", model.plugin.name, where, output, *options, *common]


def _location(label_set: LabelSet) -> str:
    """Return where a label set is, as the prep command reads it."""
    if (hub := label_set.hugging_face) is not None:
        return f"hf://{'datasets/' if hub.type == 'dataset' else ''}{hub.repo}@{hub.revision}/{hub.path}"
    if label_set.s3 is not None:
        return label_set.s3.uri
    return label_set.url or f"{_LABEL_SETS}/{label_set.name}"


def _checkpoint_arguments(source: Source) -> tuple[str, list[str]]:
    """Return the location of the checkpoint and its options as arguments of the prep command."""
    if source.hugging_face is not None:
        hub = source.hugging_face
        return hub.repo, pod_defaults.join_arguments(
            ["--revision", hub.revision],
            ["--allow-mutable-revision"] if hub.allow_mutable_revision else [],
            pod_defaults.option_arguments("--endpoint", hub.endpoint),
            ["--token-file", f"{_TOKEN}/token"] if hub.token_secret_ref else [],
        )
    if source.s3 is not None:
        return source.s3.uri, pod_defaults.join_arguments(
            pod_defaults.option_arguments("--endpoint", source.s3.endpoint),
            pod_defaults.option_arguments("--region", source.s3.region),
            ["--credentials-folder", _CREDENTIALS] if source.s3.credentials_secret_ref else [],
        )
    if source.http is not None:
        return source.http.url, ["--sha256", source.http.sha256]
    path = source.pvc.path.strip("/") if source.pvc is not None else ""
    return f"{_SOURCE}/{path}".rstrip("/"), []
