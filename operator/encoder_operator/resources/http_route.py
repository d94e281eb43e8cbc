"""The HTTPRoute (Gateway API) that exposes a model through a Gateway."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel


def build(model: EncoderModel) -> Json | None:
    """Return the HTTPRoute, or None if the spec requests none."""
    wanted = model.spec.network.http_route
    if wanted is None:
        return None
    # write the defaults of the API's schema out: its lists are owned and compared as a whole
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
