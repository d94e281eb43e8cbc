"""The Job of a parity check: send the reference inputs to one pod and compare its responses. No GPU, no torch, no token."""

from __future__ import annotations

import itertools

from encoder_operator import naming
from encoder_operator.manager.settings import Settings
from encoder_operator.resources import pod_defaults, scheduling
from encoder_operator.resources.serving_pod_template import ARTIFACTS_PATH, PORT
from encoder_operator.revisions.hashing import Json, canonical_json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Pod, Revision
from encoder_operator.validation import pod_template

# time for scheduling, the image pull and the start of Python
_SLACK_SECONDS = 120
# long enough to read the report and to know the number of the next attempt
_KEPT_SECONDS = 3600


def binding(pod: Pod, revision: str) -> Json:
    """Return the properties of `pod` that a verdict must be bound to."""
    return {
        "uid": pod.uid,
        "containerIDs": dict(sorted(pod.containers.items())),
        "imageID": pod.image_id,
        "product": pod.product,
        "revision": revision,
    }


def build(model: EncoderModel, revision: Revision, pod: Pod, *, attempt: int, shared: bool, settings: Settings) -> Json:
    """Return the Job of one attempt to verify `revision` on `pod`."""
    labels = naming.labels(model.name, "parity", revision.hash)
    bound = canonical_json(binding(pod, revision.hash))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": naming.parity_job(model.name, revision.hash, attempt),
            "namespace": model.namespace,
            "labels": labels,
            "annotations": {
                naming.ATTEMPT: str(attempt),
                naming.BINDING: bound,
                naming.RETRY: model.retry,
                naming.THRESHOLDS: model.thresholds,
            },
            "ownerReferences": [naming.owner_reference(model.name, model.uid)],
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": model.spec.parity.timeout_seconds + _SLACK_SECONDS,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {
                "metadata": {"labels": labels | _claim(revision, shared=shared)},
                "spec": _pod(model, revision, pod, bound, shared=shared, settings=settings),
            },
        },
    }


def _claim(revision: Revision, *, shared: bool) -> dict[str, str]:
    """Return the label of the revision's own PVC, which may differ from the one in the current spec."""
    known = revision.template["metadata"]["labels"]
    return {} if shared or naming.CLAIM not in known else {naming.CLAIM: known[naming.CLAIM]}


def _limits(revision: Revision) -> list[str]:
    """Return the limits that the revision's own server was started with, which the current spec may have changed."""
    # what follows is for vLLM
    own = list(itertools.takewhile(lambda argument: argument != "--", _arguments(revision)))
    return [value for name, value in itertools.pairwise(own) if name == "--limit"]


def _quantization(revision: Revision) -> str | None:
    """Return what the revision's own engine quantizes to; bounds of the parity check depend on it."""
    # vLLM's option; the server has none of this name
    pairs = itertools.pairwise(_arguments(revision))
    return next((value for name, value in pairs if name == "--quantization"), None)


def _arguments(revision: Revision) -> list[str]:
    containers = revision.template["spec"]["containers"]
    engine = next(container for container in containers if container["name"] == pod_template.ENGINE)
    return list(engine.get("args", ()))


def _pod(model: EncoderModel, revision: Revision, pod: Pod, bound: str, *, shared: bool, settings: Settings) -> Json:
    address = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    pinned = revision.pinned
    container = {
        "name": "parity",
        "image": settings.images.operator,
        "imagePullPolicy": settings.images.pull_policy,
        "command": ["encoder-plugins"],
        "args": pod_defaults.join_arguments(
            ["parity", f"{ARTIFACTS_PATH}/{pinned['artifact']['key']}", f"http://{address}:{PORT}"],
            ["--name", model.name, "--dtype", pinned["dtype"]],
            pod_defaults.option_arguments("--quantization", _quantization(revision)),
            *(["--limit", limit] for limit in _limits(revision)),
            ["--thresholds", canonical_json(model.spec.parity.thresholds)] if model.spec.parity.thresholds else [],
            ["--timeout", str(model.spec.parity.timeout_seconds), "--binding", bound],
            ["--termination-log", "/dev/termination-log"],
        ),
        "env": pod_defaults.environment({"HOME": "/tmp", "LOGNAME": "encoder"}, []),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": pod_defaults.container_context(),
        "resources": pod_defaults.resources(settings.parity_resources),
        "volumeMounts": [
            {"name": "artifacts", "mountPath": ARTIFACTS_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    spec: Json = pod_defaults.pod_fields(fixed_user=settings.fixed_user) | {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "artifacts", "persistentVolumeClaim": {"claimName": pinned["claim"]}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return spec | scheduling.parity(model, revision.template["spec"], pod.node, shared=shared)
