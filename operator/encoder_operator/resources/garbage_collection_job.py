"""The Job that deletes unreferenced artifacts from one PersistentVolumeClaim. It has no network access and no token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from encoder_operator import naming
from encoder_operator.manager.settings import Settings
from encoder_operator.resources import pod_defaults
from encoder_operator.resources.serving_pod_template import ARTIFACTS_PATH
from encoder_operator.revisions.hashing import Json, json_digest

# a Job that cannot be scheduled in this time is replaced by the next one, which has a newer list
_DEADLINE_SECONDS = 1800
_KEPT_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionTarget:
    """A PersistentVolumeClaim with artifacts.

    Attributes:
        namespace: Namespace of the PVC.
        name: Name of the PVC.
        models: EncoderModels that store artifacts on it.
        keep: Keys of artifacts to keep.
    """

    namespace: str
    name: str
    models: tuple[str, ...]
    keep: tuple[str, ...]


def build(target: CollectionTarget, listed_at: datetime, settings: Settings) -> Json:
    """Return the Job for the PVC `claim`, whose keys to keep were listed at `listed_at`."""
    pvc_hash = json_digest(target.name)
    labels = {naming.COMPONENT: "gc", naming.MANAGED_BY: naming.MANAGER, naming.CLAIM: pvc_hash[:16]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"encoder-gc-{pvc_hash[:10]}-{listed_at:%Y%m%d%H%M%S}",
            "namespace": target.namespace,
            "labels": labels,
        },
        "spec": {
            # no retry with an outdated list of keys
            "backoffLimit": 0,
            "activeDeadlineSeconds": _DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": _pod(target, listed_at, settings)},
        },
    }


def _pod(target: CollectionTarget, listed_at: datetime, settings: Settings) -> Json:
    container = {
        "name": "gc",
        "image": settings.images.operator,
        "imagePullPolicy": settings.images.pull_policy,
        "command": ["encoder-plugins"],
        "args": pod_defaults.join_arguments(
            [
                "collect",
                ARTIFACTS_PATH,
                "--listed-at",
                listed_at.isoformat(),
                "--termination-log",
                "/dev/termination-log",
            ],
            *(["--keep", key] for key in target.keep),
        ),
        "env": pod_defaults.environment({"HOME": "/tmp", "LOGNAME": "encoder"}, []),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": pod_defaults.container_context(),
        "resources": pod_defaults.resources(settings.parity_resources),
        "volumeMounts": [{"name": "artifacts", "mountPath": ARTIFACTS_PATH}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    affinity_labels: list[Json] = [
        {naming.CLAIM: json_digest(target.name)[:16]},
        *({naming.MODEL: model} for model in target.models),
    ]
    # a ReadWriteOnce volume may be attached to a node; if it is not, any node will do
    terms = [
        {
            "weight": 100,
            "podAffinityTerm": {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"},
        }
        for labels in affinity_labels
    ]
    return pod_defaults.pod_fields(fixed_user=settings.fixed_user) | {
        "restartPolicy": "Never",
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}},
        "containers": [container],
        "volumes": [
            {"name": "artifacts", "persistentVolumeClaim": {"claimName": target.name}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
