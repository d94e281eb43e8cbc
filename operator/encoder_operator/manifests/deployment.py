"""The one Deployment of a model. Kubernetes' own rollout, held back by the readiness gate, does the rest."""

from __future__ import annotations

from encoder_operator import names
from encoder_operator.canonical import Json
from encoder_operator.facts import Revision
from encoder_operator.model import Model


def render(model: Model, revision: Revision, replicas: int) -> Json:
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
            "labels": names.labels(model.name, "serving", revision.hash),
            "ownerReferences": [names.owner(model.name, model.uid)],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {names.MODEL: model.name, names.COMPONENT: "serving"}},
            "strategy": strategy,
            **patience,
            # only a condition of the Deployment; the operator gives up by its own clock
            "progressDeadlineSeconds": 3600,
            "revisionHistoryLimit": 3,
            "template": revision.template,
        },
    }
