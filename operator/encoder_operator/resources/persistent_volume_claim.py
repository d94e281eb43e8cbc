"""The volume claim of a model whose spec asks for one."""

from __future__ import annotations

from encoder_operator import naming
from encoder_operator.api.v1alpha1 import NewClaim
from encoder_operator.client import apply_diff
from encoder_operator.revisions.hashing import Json
from encoder_operator.state.desired import Model
from encoder_operator.state.observed import Claim


def render(model: Model, wanted: NewClaim, existing: Claim | None, *, grown: bool = False) -> Json:
    """Return the claim; owned by the model, and so deleted with it, only where the policy says so.

    Args:
        model: What is asked for.
        wanted: Its storage.
        existing: The claim that is there.
        grown: Whether that is to have the size that is wanted now.
    """
    metadata: Json = {
        "name": naming.artifacts_claim(model.name),
        "namespace": model.namespace,
        "labels": {naming.MODEL: model.name, naming.COMPONENT: "prep", naming.MANAGED_BY: naming.MANAGER},
    }
    if model.spec.storage.policy == "Delete":
        metadata["ownerReferences"] = [naming.owner(model.name, model.uid)]
    # a volume that an administrator has made larger must not be asked to shrink
    size: object = wanted.size if existing is None or grown else _asked(existing)
    spec: Json = {"accessModes": list(wanted.access_modes), "resources": {"requests": {"storage": size}}}
    if wanted.storage_class_name is not None:
        spec["storageClassName"] = wanted.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def grows(wanted: NewClaim, existing: Claim) -> bool:
    """Return whether a larger volume is wanted than the claim asks for; the API server lets only a bound one grow."""
    return existing.bound and bool(apply_diff.amount(wanted.size) > apply_diff.amount(_asked(existing)))


def _asked(claim: Claim) -> object:
    found: object = claim.live["spec"]["resources"]["requests"]["storage"]
    return found
