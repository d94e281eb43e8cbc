"""The PodDisruptionBudget of a model with more than one replica."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel


def build(model: EncoderModel) -> Json | None:
    """Return the PodDisruptionBudget, or None for a single replica, which it would keep from being drained."""
    if model.spec.serving.replicas < 2:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": model.name,
            "namespace": model.namespace,
            "labels": naming.labels(model.name, "serving"),
            "ownerReferences": [naming.owner_reference(model.name, model.uid)],
        },
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": {naming.MODEL: model.name, naming.COMPONENT: "serving"}},
            # unhealthy and unverified pods do not block a drain
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
