"""The Service of a model. Its endpoints are the pods whose readiness gate is open."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel


def build(model: EncoderModel) -> Json:
    """Return the Service."""
    wanted = model.spec.network.service
    metadata: Json = {
        "name": model.name,
        "namespace": model.namespace,
        "labels": naming.labels(model.name, "serving"),
        "ownerReferences": [naming.owner_reference(model.name, model.uid)],
    }
    if wanted.annotations:
        metadata["annotations"] = dict(wanted.annotations)
    spec: Json = {
        "selector": {naming.MODEL: model.name, naming.COMPONENT: "serving"},
        "ports": [{"name": "http", "port": wanted.port, "targetPort": "http", "protocol": "TCP"}],
        # owned although these are defaults: other values would bypass the readiness gate
        "type": wanted.type,
        "publishNotReadyAddresses": False,
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def endpoint(model: EncoderModel, port: int | None = None) -> str:
    """Return the URL of the model inside the cluster; `port` is the Service's port, by default the one in the spec."""
    port = model.spec.network.service.port if port is None else port
    return f"http://{model.name}.{model.namespace}.svc{'' if port == 80 else f':{port}'}/pooling"
