"""The NetworkPolicy that restricts which pods may send requests to a model."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.resources.serving_pod_template import PORT
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel


def build(model: EncoderModel) -> Json | None:
    """Return the NetworkPolicy, or None if the spec requests none. Kubelet probes are not affected by network policies."""
    wanted = model.spec.network.network_policy
    if wanted is None:
        return None
    peers = [entry.model_dump(by_alias=True, exclude_defaults=True, mode="json") for entry in wanted.from_]
    parity = {"podSelector": {"matchLabels": {naming.MODEL: model.name, naming.COMPONENT: "parity"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": model.name,
            "namespace": model.namespace,
            "labels": naming.labels(model.name, "serving"),
            "ownerReferences": [naming.owner_reference(model.name, model.uid)],
        },
        "spec": {
            "podSelector": {"matchLabels": {naming.MODEL: model.name, naming.COMPONENT: "serving"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [parity, *peers], "ports": [{"port": PORT, "protocol": "TCP"}]}],
        },
    }
