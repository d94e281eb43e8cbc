"""The PersistentVolumeClaim of a model with spec.storage.create."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import NewClaim, quantity
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import PersistentVolumeClaim


def build(
    model: EncoderModel,
    wanted: NewClaim,
    existing: PersistentVolumeClaim | None,
    *,
    grown: bool = False,
    storage_class: str = "",
) -> Json:
    """Return the PersistentVolumeClaim. It has an owner reference, and is deleted with the model, only if the policy is Delete.

    Args:
        model: The desired state.
        wanted: The requested storage.
        existing: The existing PersistentVolumeClaim, if any.
        storage_class: StorageClass of a new PersistentVolumeClaim that requests none; empty for the cluster's default.
        grown: Whether to request the wanted size instead of keeping the current one.
    """
    metadata: Json = {
        "name": naming.artifacts_pvc(model.name),
        "namespace": model.namespace,
        "labels": {naming.MODEL: model.name, naming.COMPONENT: "prep", naming.MANAGED_BY: naming.MANAGER},
    }
    if model.spec.storage.policy == "Delete":
        metadata["ownerReferences"] = [naming.owner_reference(model.name, model.uid)]
    # a volume that an administrator has expanded must not shrink
    size: object = wanted.size if existing is None or grown else _requested_size(existing)
    spec: Json = {"accessModes": list(wanted.access_modes), "resources": {"requests": {"storage": size}}}
    # immutable: an existing PersistentVolumeClaim keeps the class that it got, whichever default that was
    current = existing.live["spec"].get("storageClassName") if existing is not None else storage_class
    name = wanted.storage_class_name or current
    if name:
        spec["storageClassName"] = name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def needs_expansion(wanted: NewClaim, existing: PersistentVolumeClaim) -> bool:
    """Return whether a larger size is requested than before. The API server expands bound claims only."""
    return existing.bound and bool(
        quantity.parse_quantity(wanted.size) > quantity.parse_quantity(_requested_size(existing))
    )


def _requested_size(pvc: PersistentVolumeClaim) -> object:
    found: object = pvc.live["spec"]["resources"]["requests"]["storage"]
    return found
