"""ControllerRevisions: immutable records that tenants' edit roles can't write. One per revision, one per verdict."""

from __future__ import annotations

from encoder_operator import names
from encoder_operator.canonical import Json, digest
from encoder_operator.facts import Revision
from encoder_operator.model import Model


def revision(model: Model, found: Revision) -> Json:
    """Return the record of a revision: its finished pod template and what was pinned for it."""
    record = _record(model, names.revision(model.name, found.hash), "revision", found.hash)
    record["metadata"]["labels"][names.INPUTS] = found.inputs
    record["metadata"]["annotations"] = {names.CLAIM_UID: found.claim_uid}
    return record | {"revision": found.number, "data": {"template": found.template, "pinned": found.pinned}}


def verdict(model: Model, revision_hash: str, data: Json) -> Json:
    """Return the record of a verdict on one revision, one accelerator product and one set of thresholds."""
    which = digest({"product": data["product"], "thresholds": data["thresholds"], "retry": data["retry"]})[:6]
    name = f"{names.revision(model.name, revision_hash)}-{which}-verdict"
    return _record(model, name, "verdict", revision_hash) | {"revision": 0, "data": data}


def _record(model: Model, name: str, component: str, revision_hash: str) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": model.namespace,
            "labels": names.labels(model.name, component, revision_hash),
            "ownerReferences": [names.owner(model.name, model.uid)],
        },
    }
