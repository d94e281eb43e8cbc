"""The Job that removes from one claim the artifacts that no object of ours mentions. It may reach nothing and sees no token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from encoder_operator import naming
from encoder_operator.manager.settings import Settings
from encoder_operator.resources import pod_defaults
from encoder_operator.resources.serving_pod_template import ARTIFACTS_PATH
from encoder_operator.revisions.hashing import Json, json_digest

# a Job that can't be placed in that time is not needed any more: the next one knows better what is wanted
_DEADLINE_SECONDS = 1800
_KEPT_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionTarget:
    """A claim with artifacts on it.

    Attributes:
        namespace: Where it is.
        name: What it is called.
        models: EncoderModels whose artifacts are there.
        keep: Keys of artifacts that are wanted.
    """

    namespace: str
    name: str
    models: tuple[str, ...]
    keep: tuple[str, ...]


def build(claim: CollectionTarget, listed_at: datetime, settings: Settings) -> Json:
    """Return the Job that collects on ``claim``, whose keys to keep were found at ``listed_at``."""
    which = json_digest(claim.name)
    labels = {naming.COMPONENT: "collect", naming.MANAGED_BY: naming.MANAGER, naming.CLAIM: which[:16]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"encoder-collect-{which[:10]}-{listed_at:%Y%m%d%H%M%S}",
            "namespace": claim.namespace,
            "labels": labels,
        },
        "spec": {
            # what was found out is only good for one try
            "backoffLimit": 0,
            "activeDeadlineSeconds": _DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": _pod(claim, listed_at, settings)},
        },
    }


def _pod(claim: CollectionTarget, listed_at: datetime, settings: Settings) -> Json:
    container = {
        "name": "collect",
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
            *(["--keep", key] for key in claim.keep),
        ),
        "env": pod_defaults.environment({"HOME": "/tmp", "LOGNAME": "encoder"}, []),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": pod_defaults.container_context(),
        "resources": pod_defaults.resources(settings.parity_resources),
        "volumeMounts": [{"name": "artifacts", "mountPath": ARTIFACTS_PATH}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    near: list[Json] = [
        {naming.CLAIM: json_digest(claim.name)[:16]},
        *({naming.MODEL: model} for model in claim.models),
    ]
    # a ReadWriteOnce volume is on one node at a time; where it is on none, any will do
    terms = [
        {
            "weight": 100,
            "podAffinityTerm": {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"},
        }
        for labels in near
    ]
    return pod_defaults.pod_fields() | {
        "restartPolicy": "Never",
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}},
        "containers": [container],
        "volumes": [
            {"name": "artifacts", "persistentVolumeClaim": {"claimName": claim.name}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
