"""The volume claim of a model whose spec asks for one."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import NewClaim, quantity
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import PersistentVolumeClaim


def build(
    model: EncoderModel, wanted: NewClaim, existing: PersistentVolumeClaim | None, *, grown: bool = False
) -> Json:
    """Return the claim; owned by the model, and so deleted with it, only where the policy says so.

    Args:
        model: What is asked for.
        wanted: Its storage.
        existing: The claim that is there.
        grown: Whether that is to have the size that is wanted now.
    """
    metadata: Json = {
        "name": naming.artifacts_pvc(model.name),
        "namespace": model.namespace,
        "labels": {naming.MODEL: model.name, naming.COMPONENT: "prep", naming.MANAGED_BY: naming.MANAGER},
    }
    if model.spec.storage.policy == "Delete":
        metadata["ownerReferences"] = [naming.owner_reference(model.name, model.uid)]
    # a volume that an administrator has made larger must not be asked to shrink
    size: object = wanted.size if existing is None or grown else _requested_size(existing)
    spec: Json = {"accessModes": list(wanted.access_modes), "resources": {"requests": {"storage": size}}}
    if wanted.storage_class_name is not None:
        spec["storageClassName"] = wanted.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def needs_expansion(wanted: NewClaim, existing: PersistentVolumeClaim) -> bool:
    """Return whether a larger volume is wanted than the claim asks for; the API server lets only a bound one grow."""
    return existing.bound and bool(
        quantity.parse_quantity(wanted.size) > quantity.parse_quantity(_requested_size(existing))
    )


def _requested_size(claim: PersistentVolumeClaim) -> object:
    found: object = claim.live["spec"]["resources"]["requests"]["storage"]
    return found
