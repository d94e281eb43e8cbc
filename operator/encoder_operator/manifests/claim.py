"""The volume claim of a model whose spec asks for one."""

from __future__ import annotations

from encoder_operator import names, ownership
from encoder_operator.api import NewClaim
from encoder_operator.canonical import Json
from encoder_operator.facts import Claim
from encoder_operator.model import Model


def render(model: Model, wanted: NewClaim, existing: Claim | None, *, grown: bool = False) -> Json:
    """Return the claim; owned by the model, and so deleted with it, only where the policy says so.

    Args:
        model: What is asked for.
        wanted: Its storage.
        existing: The claim that is there.
        grown: Whether that is to have the size that is wanted now.
    """
    metadata: Json = {
        "name": names.artifacts_claim(model.name),
        "namespace": model.namespace,
        "labels": {names.MODEL: model.name, names.COMPONENT: "prep", names.MANAGED_BY: names.MANAGER},
    }
    if model.spec.storage.policy == "Delete":
        metadata["ownerReferences"] = [names.owner(model.name, model.uid)]
    # a volume that an administrator has made larger must not be asked to shrink
    size: object = wanted.size if existing is None or grown else _asked(existing)
    spec: Json = {"accessModes": list(wanted.access_modes), "resources": {"requests": {"storage": size}}}
    if wanted.storage_class_name is not None:
        spec["storageClassName"] = wanted.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def grows(wanted: NewClaim, existing: Claim) -> bool:
    """Return whether a larger volume is wanted than the claim asks for; the API server lets only a bound one grow."""
    return existing.bound and bool(ownership.amount(wanted.size) > ownership.amount(_asked(existing)))


def _asked(claim: Claim) -> object:
    found: object = claim.live["spec"]["resources"]["requests"]["storage"]
    return found
