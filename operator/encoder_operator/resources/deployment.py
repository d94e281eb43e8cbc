"""The one Deployment of a model. Kubernetes' own rollout, held back by the readiness gate, does the rest."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Revision


def build(model: EncoderModel, revision: Revision, replicas: int) -> Json:
    """Return the Deployment that serves ``revision``."""
    rollout = model.spec.rollout
    strategy: Json = {"type": rollout.strategy}
    if rollout.strategy == "RollingUpdate":
        # both fields are always ours: one that the API server defaulted can't be taken over later
        strategy["rollingUpdate"] = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    # a pod is an endpoint everywhere before the one that it replaces goes
    patience = {"minReadySeconds": rollout.min_ready_seconds} if rollout.min_ready_seconds else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": model.name,
            "namespace": model.namespace,
            "labels": naming.labels(model.name, "serving", revision.hash),
            "ownerReferences": [naming.owner_reference(model.name, model.uid)],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {naming.MODEL: model.name, naming.COMPONENT: "serving"}},
            "strategy": strategy,
            **patience,
            # only a condition of the Deployment; the operator gives up by its own clock
            "progressDeadlineSeconds": 3600,
            "revisionHistoryLimit": 3,
            "template": revision.template,
        },
    }
