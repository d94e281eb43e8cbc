"""The Deployment of the serving pods. The readiness gate holds back its rolling update until new pods are verified."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import Revision


def build(model: EncoderModel, revision: Revision, replicas: int) -> Json:
    """Return the Deployment that runs `revision`."""
    rollout = model.spec.rollout
    strategy: Json = {"type": rollout.strategy}
    if rollout.strategy == "RollingUpdate":
        # own both fields: server-side apply cannot take over a field that the API server has defaulted
        strategy["rollingUpdate"] = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    # gives the endpoints of a new pod time to propagate before an old pod is removed
    min_ready = {"minReadySeconds": rollout.min_ready_seconds} if rollout.min_ready_seconds else {}
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
            **min_ready,
            # sets only a condition of the Deployment; the operator has its own progress deadline
            "progressDeadlineSeconds": 3600,
            "revisionHistoryLimit": 3,
            # owned although it is the default: a paused Deployment rolls nothing out and nothing back
            "paused": False,
            "template": revision.template,
        },
    }
