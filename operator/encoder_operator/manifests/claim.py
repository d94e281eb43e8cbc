"""The volume claim of a model whose spec asks for one."""

from __future__ import annotations

from encoder_operator import names
from encoder_operator.api import NewClaim
from encoder_operator.canonical import Json
from encoder_operator.facts import Claim
from encoder_operator.model import Model


def render(model: Model, wanted: NewClaim, existing: Claim | None) -> Json:
    """Return the claim; owned by the model, and so deleted with it, only where the policy says so."""
    metadata: Json = {
        "name": names.artifacts_claim(model.name),
        "namespace": model.namespace,
        "labels": {names.MODEL: model.name, names.COMPONENT: "prep", names.MANAGED_BY: names.MANAGER},
    }
    if model.spec.storage.policy == "Delete":
        metadata["ownerReferences"] = [names.owner(model.name, model.uid)]
    size: object = wanted.size
    if existing is not None:
        # a volume that an administrator has made larger must not be asked to shrink
        size = existing.live["spec"]["resources"]["requests"]["storage"]
    spec: Json = {"accessModes": list(wanted.access_modes), "resources": {"requests": {"storage": size}}}
    if wanted.storage_class_name is not None:
        spec["storageClassName"] = wanted.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
