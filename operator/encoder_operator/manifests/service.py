"""The Service: every pod of the model whose readiness gate is open."""

from __future__ import annotations

from encoder_operator import names
from encoder_operator.canonical import Json
from encoder_operator.model import Model

PORT = 80


def render(model: Model) -> Json:
    """Return the Service."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": model.name,
            "namespace": model.namespace,
            "labels": names.labels(model.name, "serving"),
            "ownerReferences": [names.owner(model.name, model.uid)],
        },
        "spec": {
            "selector": {names.MODEL: model.name, names.COMPONENT: "serving"},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def endpoint(name: str, namespace: str) -> str:
    """Return where clients in the cluster send requests."""
    return f"http://{name}.{namespace}.svc/pooling"
