"""The PodDisruptionBudget of a model with more than one replica, on a volume that several nodes can mount."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel


def build(model: EncoderModel, *, shared: bool) -> Json | None:
    """Return the PodDisruptionBudget, or None where it would block a drain.

    A budget lets a drain evict the second pod when the replacement of the first one is ready. A single replica is never
    replaced before it is evicted, and on a volume that only one node can mount, the replacement has to wait for that node.

    Args:
        model: The desired state.
        shared: Whether several nodes can mount the volume at the same time.
    """
    if model.spec.serving.replicas < 2 or not shared:
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
