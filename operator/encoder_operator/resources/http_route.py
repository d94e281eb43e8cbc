"""The HTTPRoute (Gateway API) of a model that is also reachable through a Gateway."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel


def build(model: EncoderModel) -> Json | None:
    """Return the HTTPRoute, or None where the spec asks for none."""
    wanted = model.spec.network.http_route
    if wanted is None:
        return None
    # whole entries with what the API's own schema would default to: its lists are owned as a whole, and compared so
    rule: Json = {
        "matches": [{"path": {"type": "PathPrefix", "value": wanted.path_prefix}}],
        "backendRefs": [
            {"group": "", "kind": "Service", "name": model.name, "port": model.spec.network.service.port, "weight": 1}
        ],
    }
    if wanted.path_prefix != "/":
        path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": {"path": path}}]
    spec: Json = {
        "parentRefs": [
            {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
            | entry.model_dump(by_alias=True, exclude_none=True, mode="json")
            for entry in wanted.parent_refs
        ],
        "rules": [rule],
    }
    if wanted.hostnames:
        spec["hostnames"] = list(wanted.hostnames)
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {
            "name": model.name,
            "namespace": model.namespace,
            "labels": naming.labels(model.name, "serving"),
            "ownerReferences": [naming.owner_reference(model.name, model.uid)],
        },
        "spec": spec,
    }
